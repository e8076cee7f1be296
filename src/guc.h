/*
 * guc.h
 *	  Settings of the server.
 */
#ifndef IDEMPOTENCY_GUC_H
#define IDEMPOTENCY_GUC_H

extern bool guc_allow_on_worker_nodes;
extern bool guc_counters;
extern char *guc_databases;
extern int	guc_max_operations;
extern int	guc_naptime;
extern char *guc_principal;
extern int	guc_purge_batch;
extern int	guc_purge_delay;
extern char *guc_request_id;
extern char *guc_trace_context;
extern bool guc_worker;

extern void guc_init(void);

#endif							/* IDEMPOTENCY_GUC_H */
