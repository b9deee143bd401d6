-- Pages. One whose time is over counts as gone, whether or not it was purged.

-- name: pages
SELECT book, name, body, version, expires_at FROM {schema}.page
WHERE book = %(book)s AND name > %(bound)s AND coalesce(expires_at > coalesce(CAST(%(now)s AS bigint), {schema}.micros()), TRUE)
ORDER BY book, name LIMIT %(limit)s

-- name: newest_pages
SELECT book, name, body, version, expires_at FROM {schema}.page
WHERE book = %(book)s AND name < %(bound)s AND coalesce(expires_at > coalesce(CAST(%(now)s AS bigint), {schema}.micros()), TRUE)
ORDER BY book DESC, name DESC LIMIT %(limit)s

-- name: page
SELECT book, name, body, version, expires_at FROM {schema}.page
WHERE book = %(book)s AND name = %(name)s AND coalesce(expires_at > coalesce(CAST(%(now)s AS bigint), {schema}.micros()), TRUE)

-- name: add_page
INSERT INTO {schema}.page AS held (book, name, body, version, expires_at) VALUES (%(book)s, %(name)s, %(body)s, 1, %(expires_at)s)
ON CONFLICT (book, name) DO UPDATE SET body = excluded.body, version = 1, expires_at = excluded.expires_at
WHERE held.expires_at <= coalesce(CAST(%(now)s AS bigint), {schema}.micros())
RETURNING 1

-- name: change_page
UPDATE {schema}.page SET body = %(body)s, version = version + 1, expires_at = %(expires_at)s
WHERE book = %(book)s AND name = %(name)s AND version = %(seen)s
  AND coalesce(expires_at > coalesce(CAST(%(now)s AS bigint), {schema}.micros()), TRUE)
RETURNING 1

-- name: remove_page
DELETE FROM {schema}.page
WHERE book = %(book)s AND name = %(name)s AND coalesce(expires_at > coalesce(CAST(%(now)s AS bigint), {schema}.micros()), TRUE)
RETURNING 1
