SELECT coalesce(array_agg(event_id), '{}') AS ids, coalesce(array_agg(fence), '{}') AS fences, count(payload), count(destination), count(created_at) FROM idem_take('bulk', 100) \gset
SELECT idem_ack_many(:ids, :fences);
