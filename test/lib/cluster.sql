-- What our code asks of Citus, without Citus: its catalogs, and functions over
-- them.  A table is distributed by the first letter of the text of its column; a
-- node is a number; the table of a shard takes the rows itself.
SET allow_system_table_mods = on;
INSERT INTO pg_extension VALUES (99999, 'citus', 10, 11, false, '14.0-1', NULL, NULL);
CREATE TABLE pg_catalog.pg_dist_local_group (groupid int);
INSERT INTO pg_dist_local_group VALUES (0);
CREATE TABLE pg_catalog.pg_dist_node (nodename text, nodeport int, groupid int, isactive boolean, noderole text);
CREATE TABLE pg_catalog.pg_dist_partition (logicalrelid regclass, partmethod "char", partkey text, repmodel "char");
CREATE TABLE pg_catalog.pg_dist_shard (logicalrelid regclass, shardid bigint, shardminvalue text, shardmaxvalue text);
CREATE TABLE pg_catalog.pg_dist_placement (shardid bigint, shardstate int, groupid int);
CREATE SEQUENCE pg_catalog.stand_in_shard START 102001;
RESET allow_system_table_mods;
GRANT SELECT ON pg_dist_local_group, pg_dist_node, pg_dist_partition, pg_dist_shard, pg_dist_placement TO PUBLIC;

-- The lock of a shard is that of its number in the order of ranges.
CREATE FUNCTION pg_catalog.lock_shard_metadata(lock_mode int, shard_id bigint[]) RETURNS void LANGUAGE plpgsql STABLE AS $$
BEGIN
	PERFORM CASE lock_mode WHEN 5 THEN pg_advisory_xact_lock_shared(n) ELSE pg_advisory_xact_lock(n) END
	   FROM (SELECT shardid, rank() OVER (PARTITION BY logicalrelid ORDER BY shardminvalue COLLATE "C") FROM pg_dist_shard) AS s (shardid, n)
	  WHERE shardid = ANY (shard_id);
END $$;
-- The value goes by its text into the type of the column.
CREATE FUNCTION pg_catalog.get_shard_id_for_distribution_column(table_name regclass, distribution_value anyelement) RETURNS bigint LANGUAGE plpgsql STABLE AS $$
DECLARE
	place text;
BEGIN
	EXECUTE (SELECT format('SELECT %L::%s', distribution_value, format_type(atttypid, atttypmod)) FROM pg_dist_partition JOIN pg_attribute ON attrelid = logicalrelid AND attname = partkey WHERE logicalrelid = table_name) INTO place;
	RETURN (SELECT shardid FROM pg_dist_shard WHERE logicalrelid = table_name AND left(place, 1) COLLATE "C" BETWEEN shardminvalue AND shardmaxvalue);
END $$;
CREATE FUNCTION pg_catalog.column_to_column_name(table_name regclass, column_var_text text) RETURNS text LANGUAGE sql AS 'SELECT column_var_text';
CREATE FUNCTION pg_catalog.run_command_on_workers(command text, OUT nodename text, OUT nodeport int, OUT success boolean, OUT result text) RETURNS SETOF record LANGUAGE sql AS $$
	SELECT nodename, nodeport, isactive, current_setting('test.result') FROM pg_dist_node WHERE groupid <> 0
$$;
CREATE FUNCTION pg_catalog.create_reference_table(table_name regclass) RETURNS void LANGUAGE sql AS $$
	INSERT INTO pg_dist_shard VALUES (table_name, nextval('stand_in_shard'));
	INSERT INTO pg_dist_placement SELECT currval('stand_in_shard'), 1, groupid FROM pg_dist_node;
$$;

-- The rows of the table itself go to its shards.
CREATE FUNCTION pg_catalog.stand_in_route() RETURNS trigger LANGUAGE plpgsql AS $$
BEGIN
	EXECUTE format('INSERT INTO %I.%I SELECT $1.*', TG_TABLE_SCHEMA, TG_TABLE_NAME || '_' || get_shard_id_for_distribution_column(TG_RELID, NEW.place)) USING NEW;
	RETURN NULL;
END $$;
CREATE FUNCTION pg_catalog.create_distributed_table(table_name regclass, distribution_column text, colocate_with text) RETURNS void LANGUAGE plpgsql AS $$
DECLARE
	beside record;
	shard bigint;
BEGIN
	INSERT INTO pg_dist_partition SELECT table_name, partmethod, distribution_column, repmodel FROM pg_dist_partition WHERE logicalrelid = colocate_with::regclass;
	FOR beside IN SELECT * FROM pg_dist_shard JOIN pg_dist_placement USING (shardid) WHERE logicalrelid = colocate_with::regclass LOOP
		shard := nextval('stand_in_shard');
		INSERT INTO pg_dist_shard VALUES (table_name, shard, beside.shardminvalue, beside.shardmaxvalue);
		INSERT INTO pg_dist_placement VALUES (shard, 1, beside.groupid);
		EXECUTE format('CREATE TABLE %s_%s (LIKE %1$s INCLUDING ALL)', table_name, shard);
	END LOOP;
	EXECUTE format('CREATE TRIGGER stand_in_route BEFORE INSERT ON %s FOR EACH ROW EXECUTE FUNCTION stand_in_route()', table_name);
END $$;
