-- How many jobs of a queue run at the most: as many as ran when somebody last counted, and all that were claimed since. Not known before the
-- first count.
ALTER TABLE {schema}.turn ADD COLUMN IF NOT EXISTS running bigint;
