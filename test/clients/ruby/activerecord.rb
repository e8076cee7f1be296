# ActiveRecord: select_one with sanitize_sql; transaction(requires_new: true) is the
# savepoint. jsonb and interval come as text, and a SELECT may be answered by the cache.
require 'active_record'
require 'json'
require 'securerandom'
require_relative '../lib/tap'

LAMP = { item: 'lamp', quantity: 2 }.freeze
NONE = { item: 'lamp', quantity: 0 }.freeze
Record = ActiveRecord::Base
Record.establish_connection(adapter: 'postgresql', host: ENV['PGHOST'], username: 'app', database: 'shop')

class Other < ActiveRecord::Base
  self.abstract_class = true
end
Other.establish_connection(Record.connection_db_config.configuration_hash)

def one(sql, *values, on: Record)
  on.connection.select_one(Record.sanitize_sql([sql, *values]))
end

def claim(key, params = LAMP, lease = nil, on: Record)
  one("SELECT verdict, fence, result, error, extract(epoch FROM retry_after)::float AS retry_after, holder
    FROM idem_claim('create_order', ?, ?, 'activerecord', lease => ?)", key, params.to_json, lease, on: on)
end

def complete(key, fence, result)
  one("SELECT idem_complete_key('create_order', ?, ?, ?, 'activerecord') AS result", key, fence, result.to_json)['result']
end

def insert(order)
  one("INSERT INTO orders (client, item, quantity) VALUES ('activerecord', ?, ?) RETURNING id", *order.values)['id']
end

def status(key)
  one("SELECT state, result FROM idem_status('create_order', ?, 'activerecord')", key)
end

def sqlstate(error)
  error.cause.result.error_field(PG::Result::PG_DIAG_SQLSTATE)
end

first = order = busy = returned = nil
Record.transaction do
  first = claim('k1')
  order = insert(LAMP)
  busy = claim('k1', on: Other)
  returned = complete('k1', first['fence'], { order: order })
end
check 'execute: the first claim executes, and the result is handed back', [first['verdict'], JSON.parse(returned)], ['execute', { 'order' => order }]
check 'in progress: told at once, by whom and for how long', [busy['verdict'], busy['holder'], busy['retry_after'] > 0],
      ['in_progress', Record.connection.raw_connection.backend_pid, true]
again = claim('k1')
check 'replay: the recorded result, as JSON text', [again['verdict'], JSON.parse(again['result'])], ['replay', { 'order' => order }]
check 'mismatch: other params', claim('k1', NONE)['verdict'], 'mismatch'

forgotten = raised(StandardError) { Record.transaction { claim('k2') } }
check 'forgotten completion: transaction raises StatementInvalid; its cause.result has ID003', [forgotten.class, sqlstate(forgotten)], [ActiveRecord::StatementInvalid, 'ID003']
check 'forgotten completion: nothing is left', status('k2')['state'], 'absent'

third = nil
Record.transaction do
  third = claim('k3', NONE)
  Record.transaction(requires_new: true) { insert(NONE) }
rescue ActiveRecord::StatementInvalid => refused
  check "savepoint: the claim outlives the work's transaction(requires_new: true)", [third['verdict'], sqlstate(refused)], %w[execute 23514]
  one("SELECT idem_fail_key('create_order', 'k3', ?, ?, principal => 'activerecord')", third['fence'], '{"code": "bad_quantity"}')
end
failed = claim('k3', NONE)
check 'failure recorded: it is replayed', [failed['verdict'], JSON.parse(failed['error'])], ['replay', { 'code' => 'bad_quantity' }]

leased = claim('k4', LAMP, '30 s')
check 'leased call: others see it while no transaction is open', claim('k4', on: Other)['verdict'], 'in_progress'
complete('k4', leased['fence'], { charge: 'ch_1' })
check 'leased call: completed by a later transaction', JSON.parse(claim('k4')['result']), { 'charge' => 'ch_1' }

Record.transaction do
  handle = one("SELECT c FROM idem_claim('create_order', 'k5', principal => 'activerecord') c")['c']
  one('SELECT idem_complete(?, ?)', handle, '[1, 2]')
end
check 'answer handed back: a composite is text here', status('k5')['result'], '[1, 2]'

def once(key)
  one("SELECT idem_once('on_payment', ?, 'activerecord') AS first", key)['first']
end
check 'once: true, then false', [once('e1'), once('e1')], [true, false]
native = claim(SecureRandom.uuid, LAMP, ActiveSupport::Duration.build(5).iso8601)
check 'types: a UUID is a string, params are JSON text, the lease an ISO 8601 duration; the fence an Integer', [native['verdict'], native['fence'].class], ['execute', Integer]

check 'trap: the query cache answers a repeat: true twice', Record.cache { [once('e2'), once('e2')] }, [true, true]
check 'trap: uncached asks the database', Record.cache { Record.uncached { [once('e3'), once('e3')] } }, [true, false]
inner = raised(ActiveRecord::StatementInvalid) do
  Record.transaction do
    claim('k6', NONE)
    begin
      Record.transaction { insert(NONE) }
    rescue ActiveRecord::StatementInvalid
      status('k6')
    end
  end
end
check 'trap: an inner transaction without requires_new: true is no savepoint', sqlstate(inner), '25P02'
done
