-- What the database of compose.yml has: one table behind PostgREST, whose POST and
-- PATCH happen once for each Idempotency-Key (docs/chain.md), and a role to watch with.
\getenv password AUTHENTICATOR_PASSWORD

CREATE SCHEMA idempotency;
CREATE EXTENSION idempotency SCHEMA idempotency;

CREATE ROLE web NOLOGIN;
CREATE ROLE authenticator LOGIN NOINHERIT PASSWORD :'password' IN ROLE web;
CREATE ROLE prometheus LOGIN;
ALTER ROLE prometheus SET search_path = idempotency;
SELECT idempotency.idem_grant('web'), idempotency.idem_grant('prometheus', 'monitor');

CREATE SCHEMA api;
CREATE TABLE api.orders (id integer GENERATED ALWAYS AS IDENTITY PRIMARY KEY, item text NOT NULL, quantity integer CHECK (quantity > 0));
GRANT USAGE ON SCHEMA api TO web;
GRANT SELECT, INSERT, UPDATE ON api.orders TO web;

-- PostgREST calls it before each request, in its transaction.  Not in a schema that it shows.
CREATE SCHEMA guard;
GRANT USAGE ON SCHEMA guard TO web;
SET search_path = idempotency;
CREATE FUNCTION guard.once() RETURNS void LANGUAGE plpgsql SET search_path = idempotency AS $$
DECLARE
    request text := concat_ws(' ', current_setting('request.method', true), current_setting('request.path', true));
    key text := current_setting('request.headers', true)::jsonb ->> 'idempotency-key';
    caller text := current_setting('request.jwt.claims', true)::jsonb ->> 'sub';
    a idem_answer;
BEGIN
    IF key IS NULL OR request !~ '^(POST|PATCH) ' OR request ~ ' /rpc/' THEN
        RETURN;
    END IF;
    a := idem_claim(request, key, principal => coalesce(caller, 'anonymous'));
    IF a.verdict = 'execute' THEN
        PERFORM idem_complete(a);
    ELSE
        RAISE SQLSTATE 'PGRST' USING
            MESSAGE = jsonb_build_object('code', a.verdict, 'message', coalesce(idem_postgrest(a) ->> 'detail', 'It was done before.')),
            DETAIL = jsonb_build_object('status', idem_http_status(a), 'headers', (
                SELECT jsonb_object_agg(h.key, h.value) FROM jsonb_array_elements(current_setting('response.headers')::jsonb) o, jsonb_each(o) h));
    END IF;
END $$;
