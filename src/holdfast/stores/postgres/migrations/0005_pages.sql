-- Documents of surfaces: tokens, the trail of what was done, and whatever else they keep by name.

CREATE TABLE IF NOT EXISTS {schema}.page (
  book       text    NOT NULL COLLATE "C",
  name       text    NOT NULL COLLATE "C",
  body       text    NOT NULL,
  version    integer NOT NULL,
  expires_at bigint,
  PRIMARY KEY (book, name)
);
CREATE INDEX IF NOT EXISTS page_expires ON {schema}.page (expires_at) WHERE expires_at IS NOT NULL;
