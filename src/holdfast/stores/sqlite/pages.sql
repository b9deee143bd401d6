-- Pages. One whose time is over counts as gone, whether or not it was purged.

-- name: pages
SELECT book, name, body, version, expires_at FROM page
WHERE book = ?1 AND name > ?2 AND (expires_at IS NULL OR expires_at > ?3) ORDER BY name LIMIT ?4

-- name: newest_pages
SELECT book, name, body, version, expires_at FROM page
WHERE book = ?1 AND name < ?2 AND (expires_at IS NULL OR expires_at > ?3) ORDER BY name DESC LIMIT ?4

-- name: page
SELECT book, name, body, version, expires_at FROM page
WHERE book = ?1 AND name = ?2 AND (expires_at IS NULL OR expires_at > ?3)

-- name: add_page
INSERT INTO page (book, name, body, version, expires_at) VALUES (?1, ?2, ?3, 1, ?4)
ON CONFLICT (book, name) DO UPDATE SET body = excluded.body, version = 1, expires_at = excluded.expires_at
WHERE page.expires_at <= ?5

-- name: change_page
UPDATE page SET body = ?3, version = version + 1, expires_at = ?4
WHERE book = ?1 AND name = ?2 AND version = ?6 AND (expires_at IS NULL OR expires_at > ?5)

-- name: remove_page
DELETE FROM page WHERE book = ?1 AND name = ?2 AND (expires_at IS NULL OR expires_at > ?3)

-- name: page_over
-- The first page that is to go.
SELECT min(expires_at) FROM page WHERE expires_at <= ?1

-- name: purge_pages
DELETE FROM page WHERE (book, name) IN (SELECT book, name FROM page WHERE expires_at <= ?1 ORDER BY expires_at LIMIT ?2)
