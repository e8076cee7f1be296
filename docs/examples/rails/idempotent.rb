# Rails: a concern that makes actions happen once per Idempotency-Key. What an action
# renders is recorded and replayed; an exception is not, and the next request executes.
#
#   class OrdersController < ActionController::API
#     include Idempotent
#     idempotent :create
module Idempotent
  extend ActiveSupport::Concern

  CLAIM = <<~SQL.squish
    SELECT verdict, fence, result, idem_http_status(c) AS status, ceil(extract(epoch FROM retry_after))::int AS retry_after
      FROM idem_claim(?, ?, ?, ?) c
  SQL
  COMPLETE = 'SELECT idem_complete_key(?, ?, ?, ?, ?)'.freeze
  TITLES = { 'in_progress' => 'A request with this Idempotency-Key is in progress', 'mismatch' => 'This Idempotency-Key was used with another request',
             'unknown' => 'The outcome of the first request is not known yet', 'expired' => 'This Idempotency-Key is too old' }.freeze
  BAD_REQUEST = %w[22023 22032 22P02 22P05].freeze # no account, a key too long, params that are none

  class_methods do
    def idempotent(*actions)
      around_action(:once, only: actions)
      rescue_from(ActiveRecord::StatementInvalid, with: :bad_request)
    end
  end

  private

  def once(&action)
    key = request.headers['Idempotency-Key'].to_s.delete_prefix('"').delete_suffix('"')
    return problem(400, 'This endpoint needs an Idempotency-Key') if key.empty?

    names = ["#{request.method} #{controller_path}##{action_name}", key]
    claim, recorded = ActiveRecord::Base.uncached do # the cache would answer a claim that it has seen in this request
      ActiveRecord::Base.transaction(requires_new: true) do
        claim = ask(CLAIM, *names, [request.path_parameters, request.query_parameters, request.request_parameters].to_json, account)
        recorded = claim['result']
        if claim['verdict'] == 'execute'
          recorded = attempt(&action).to_json
          ask(COMPLETE, *names, claim['fence'], recorded, account)
        end
        [claim, recorded]
      end
    end
    recorded ? replay(JSON.parse(recorded), claim['verdict']) : refuse(claim)
  end

  # A refusal (4xx) is recorded, what was done before it is taken back.
  def attempt
    ActiveRecord::Base.transaction(requires_new: true) do
      yield
      raise ActiveRecord::Rollback if response.status >= 400
    end
    { status: response.status, headers: response.headers.slice('Content-Type', 'Location'), body: response.body }
  end

  def replay(recorded, verdict)
    return if performed? # the action has rendered it

    response.headers.merge!(recorded['headers'], 'Idempotent-Replayed' => (verdict == 'replay').to_s)
    self.status, self.response_body = recorded.values_at('status', 'body')
  end

  def refuse(claim)
    response.headers['Retry-After'] = claim['retry_after'].to_s if claim['retry_after']
    problem(claim['status'], TITLES[claim['verdict']])
  end

  def bad_request(error) # its message is for the log
    raise error unless BAD_REQUEST.include?(error.cause.result&.error_field(PG::Result::PG_DIAG_SQLSTATE))
    problem(400, 'The account, the key or the body is missing or wrong')
  end

  def problem(status, title)
    render json: { status: status, title: title }, status: status, content_type: 'application/problem+json'
  end

  def ask(sql, *values)
    ActiveRecord::Base.connection.select_one(ActiveRecord::Base.sanitize_sql([sql, *values]))
  end
end
