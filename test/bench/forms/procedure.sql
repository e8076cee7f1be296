-- A PL/pgSQL procedure with the recommended form.
\set k random(1, 9000000000000000000)
CALL ours_procedure('k-' || :k, :params);
