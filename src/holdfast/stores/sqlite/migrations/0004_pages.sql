-- Documents of surfaces: tokens, the trail of what was done, and whatever else they keep by name.

CREATE TABLE page (
  book       TEXT    NOT NULL,
  name       TEXT    NOT NULL,
  body       TEXT    NOT NULL,
  version    INTEGER NOT NULL,
  expires_at INTEGER,
  PRIMARY KEY (book, name)
) STRICT, WITHOUT ROWID;

CREATE INDEX page_expires ON page (expires_at) WHERE expires_at IS NOT NULL;
