-- Whether jobs of a queue run that are not counted by their lanes, because no limit of a tenant or key was near when they were claimed. Whoever
-- finds one near gives them their lanes first.

ALTER TABLE turn ADD COLUMN unnamed INTEGER NOT NULL DEFAULT 0;
