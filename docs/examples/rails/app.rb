# An application in one file, with the concern of idempotent.rb.
#
#   apt-get install ruby-railties ruby-activerecord ruby-pg puma      or from gems
#   ALTER DATABASE shop SET search_path = public, idempotency         (a SET is one connection's)
#   CREATE TABLE orders (id int GENERATED ALWAYS AS IDENTITY PRIMARY KEY, client text, item text, quantity int)
#   PGHOST=… PGDATABASE=shop PORT=8080 ruby app.rb
require 'rails'
require 'active_record/railtie'
require 'action_controller/railtie'
require 'rack/handler/puma'
require_relative 'idempotent'

ENV['DATABASE_URL'] ||= 'postgresql:///' # PGHOST and its kin say which

class App < Rails::Application
  config.eager_load = false
  config.hosts.clear
  config.secret_key_base = 'of this example'
  config.logger = Logger.new($stderr, level: :fatal)
  config.exceptions_app = lambda do |env| # a body that is no JSON, 400; the message of an error is for the log
    status = env['PATH_INFO'].delete('/').to_i
    [status, { 'Content-Type' => 'application/problem+json' }, [{ status: status, title: Rack::Utils::HTTP_STATUS_CODES[status] }.to_json]]
  end
  routes.append { post '/orders', to: 'orders#create' }
end

class Order < ActiveRecord::Base; end

class OrdersController < ActionController::API
  include Idempotent
  idempotent :create

  def create
    order = Order.create!(client: account, item: params[:item], quantity: params[:quantity])
    raise 'the action crashed' if order.item == 'crash'
    return render json: { error: 'there are no unicorns' }, status: 400 if order.item == 'unicorn'

    render json: { order: order.id, item: order.item }, status: :created, location: "/orders/#{order.id}"
  end

  private

  def account # what authentication found
    request.headers['X-Account']
  end
end

App.initialize!
Rack::Handler::Puma.run(App, Host: '127.0.0.1', Port: ENV['PORT'], Silent: true)
