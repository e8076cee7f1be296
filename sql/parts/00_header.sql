/* sql/idempotency--1.0.sql, put together by the Makefile from sql/parts */

-- complain if script is sourced in psql, rather than via CREATE EXTENSION
\echo Use "CREATE EXTENSION idempotency" to load this file. \quit
