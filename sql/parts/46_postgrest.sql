-- Answers for PostgREST, which takes status and headers from settings of the
-- transaction.

CREATE FUNCTION idem_postgrest(answer idem_answer)
RETURNS jsonb
LANGUAGE plpgsql VOLATILE PARALLEL UNSAFE
SET search_path = pg_catalog, pg_temp
AS $$
DECLARE
	status integer := @extschema@.idem_http_status(answer);
	headers jsonb := '[]';
	earlier jsonb := coalesce(nullif(current_setting('response.headers', true), ''), '[]');
	kind text := CASE answer.verdict WHEN 'mismatch' THEN 'mismatch' ELSE answer.state::text END;
	body jsonb := CASE kind WHEN 'succeeded' THEN answer.result WHEN 'failed' THEN answer.error END;
BEGIN
	IF answer.verdict = 'execute' AND answer.state = 'processing' THEN
		RAISE 'operation "%" (id %) has no response: it is yours to execute', answer.operation, answer.id
			USING ERRCODE = 'invalid_parameter_value',
				HINT = 'Do the work, call idem_complete(), and fill its result into the answer with state succeeded; or use idem_run().';
	ELSIF kind = 'succeeded' OR body IS NOT NULL THEN
		IF jsonb_typeof(body) = 'object' AND body ?& '{status,body}' AND body - '{status,headers,body}'::text[] = '{}'
			AND jsonb_typeof(body -> 'status') = 'number' AND body ->> 'status' ~ '^[2-5][0-9][0-9]$'
		THEN
			SELECT coalesce(jsonb_agg(jsonb_build_object(h.name, h.content)), '[]') INTO headers
			  FROM jsonb_array_elements(CASE jsonb_typeof(body -> 'headers') WHEN 'array' THEN body -> 'headers'
					WHEN 'object' THEN jsonb_build_array(body -> 'headers') ELSE '[]' END) o (object),
				jsonb_each_text(CASE jsonb_typeof(o.object) WHEN 'object' THEN o.object ELSE '{}' END) h (name, content)
			 WHERE h.content IS NOT NULL AND h.name || h.content !~ '[[:cntrl:]]';
			status := body ->> 'status';
			body := nullif(body -> 'body', 'null');
		END IF;
	ELSE
		-- no params, no result
		SELECT CASE WHEN status < 400 THEN '{}' ELSE jsonb_build_object('title', p.title, 'status', status, 'detail', p.detail) END
			|| jsonb_build_object('state', answer.state, 'advice', answer.advice, 'id', answer.id) INTO body
		  FROM (VALUES
			('mismatch', 'Other parameters under this key', 'The key was used with other parameters. Another intent needs another key.'),
			('absent', 'Not on record', 'Nothing is known of this key yet. Send the request again, with the same key.'),
			('unconfirmed', 'Not on record here', 'This server may lag behind. Send the request again, with the same key.'),
			('accepted', 'Accepted', 'It will be worked on. Ask again.'),
			('processing', 'In progress', 'It is being worked on. Ask again, with the same key.'),
			('failed', 'Failed', 'It was not done.'),
			('unknown', 'The outcome is not known', 'It may have been done. It is being looked into; do not use another key.'),
			('expired', 'Too late to tell', 'The key is older than what is remembered. Look up what the operation did.'))
			AS p (about, title, detail)
		 WHERE p.about IS NOT DISTINCT FROM kind;
		IF status >= 400 THEN
			headers := '[{"Content-Type": "application/problem+json"}]';
		END IF;
	END IF;
	IF answer.retry_after IS NOT NULL THEN
		headers := headers || jsonb_build_object('Retry-After', greatest(1, ceil(extract(epoch FROM answer.retry_after)))::text);
	END IF;
	IF answer.verdict = 'replay' THEN
		headers := headers || '{"Idempotent-Replayed": "true"}';
	END IF;
	-- what was set earlier in the transaction stays, but for headers of the same name
	SELECT coalesce(jsonb_agg(e ORDER BY n), '[]') || headers INTO headers
	  FROM jsonb_array_elements(earlier) WITH ORDINALITY u (e, n)
	 WHERE NOT EXISTS (SELECT FROM jsonb_array_elements(headers) o, jsonb_object_keys(o) a, jsonb_object_keys(e) b WHERE lower(a) = lower(b));
	PERFORM set_config('response.status', status::text, true), set_config('response.headers', headers::text, true);
	RETURN body;
END
$$;
COMMENT ON FUNCTION idem_postgrest(idem_answer) IS
'Returns the body of the HTTP response for an answer, and sets response.status and response.headers, from which PostgREST takes the rest: the status of idem_http_status(), Retry-After in whole seconds, and Idempotent-Replayed: true on a replay.
answer: of idem_claim, idem_run, idem_accept, idem_status or their kin; one that was the caller''s to execute with its result filled in and state succeeded
A result or error with members status (200 to 599), body and perhaps headers, and no others, gives all three, without headers that are no text of one line; any other is the body. Without an outcome the body is a problem object with state, advice and id.
Raises 22023 (not an answer, or one that is still to be executed).';
