#!/usr/bin/env python3
"""Mechanical changes of the sources, each of which some test must notice.

    mutants.py list
    mutants.py plant NAME FOLDER     changes the sources below FOLDER
    mutants.py tests NAME            the tests that are tried first
    mutants.py argued NAME           why no test can notice it; nothing if one must

A row is: tests, what stands in exactly one place of all sources, what is put there
instead and, for a change that makes no difference, the argument.  A test is a file of
test/sql, test/specs (NAME@LEVEL: at another level than read_committed) or test/t.
"""

import pathlib
import re
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent / "lib"))

from plant import plant

CLAIM = {
    "one_sided_fingerprint": (
        "replay fingerprint",
        "return rec->has_fingerprint != claim->has_fingerprint;",
        "return false;"),
    "present_normalisation_only": (
        "normalisation",
        "\tfingerprint_under(claim, rec->normalisation);\n\treturn memcmp",
        "\treturn memcmp"),
    "owner_by_prefix": (
        "lease",
        "VARSIZE_ANY_EXHDR(stored) == VARSIZE_ANY_EXHDR(given) &&",
        ""),
    "changer_overlooked": (
        "claim_wait claim_rowlock takeover_overrun",
        "*step = STEP_PROBE_AGAIN;\n\tif (TransactionIdIsValid(claim->rec.changer))",
        "*step = STEP_PROBE_AGAIN;\n\tif (false)"),
    "snapshot_always_sees": (
        "takeover_retryable@repeatable_read",
        "!XidInMVCCSnapshot(rec->xmin, GetTransactionSnapshot());",
        "true;"),
    "cancel_needs_snapshot": (
        "cancel_claim@repeatable_read",
        "prior == PRIOR_RECORD && !claim->kind->withdraws && !claim_snapshot_sees",
        "prior == PRIOR_RECORD && !claim_snapshot_sees"),
    "fence_follows_clock_back": (
        "090_clock",
        "last = Max(last + 1, now);",
        "last = now;"),
    "fence_as_before": (
        "090_clock",
        "return Max(previous + 1, last);",
        "return Max(previous, last);"),
    "accepting_is_an_attempt": (
        "accept",
        "rec->attempt += claim->kind->attempts;",
        "rec->attempt += 1;"),
    "start_forgets_params": (
        "accept",
        "if (claim->kind->matches_params)\n\t{",
        "if (true)\n\t{"),
    "locked_row_counts_as_written": (
        "claim_rowlock",
        "return change == ROW_CHANGED;\n}\n\n/* Tells",
        "return change != ROW_MISSED;\n}\n\n/* Tells"),
    "always_room_for_a_lock": (
        "batch",
        "bool\t\twrite_now = claim->lease > 0 || !open_claim_has_room();",
        "bool\t\twrite_now = claim->lease > 0;"),
    "overrun_work_left": (
        "pace",
        "claim->effective == EFFECTIVE_RETRYABLE ||\n\t\t   claim->effective == EFFECTIVE_OVERRUN));",
        "claim->effective == EFFECTIVE_RETRYABLE));"),
    "late_key_executes": (
        "late_keys",
        "return record_key_is_late(&claim->call, claim->now);",
        "return false;"),
    "released_key_is_checked": (
        "settings",
        "if (claim->effective != EFFECTIVE_RELEASED)\n\t\tcall_check_key(",
        "call_check_key("),
    "early_for_no_time": (
        "finish pace",
        "claim->answer.retry_after = claim->rec.not_before - claim->now;",
        ";"),
    "waits_for_itself": (
        "claim accept lease",
        "if (!TransactionIdIsCurrentTransactionId(claim->rec.xmin))",
        "if (true)"),
    "unknown_has_a_holder": (
        "reconcile",
        "\tclaim->answer.holder = NO_HOLDER;\n\treturn step;",
        "\treturn step;"),
    "released_early": (
        "finish pace",
        "\t{IF(RELEASED), is_early_but_on_record, VERDICT_IN_PROGRESS, act_early},\n",
        ""),
    "waits_once_too_often": (
        "120_watch",
        "(step == STEP_BUSY && waited >= claim->wait))",
        "(step == STEP_BUSY && waited > claim->wait))"),
    "longest_lease_refused": (
        "lease",
        "lease > call->policy->max_lease)",
        "lease >= call->policy->max_lease)"),
    "longest_owner_refused": (
        "lease",
        "if (len == 0 || len > IDEM_TEXT_MAX)",
        "if (len == 0 || len >= IDEM_TEXT_MAX)"),
    "long_fingerprint_taken": (
        "fingerprint claim",
        "if (given && VARSIZE_ANY_EXHDR(given) != IDEM_DIGEST_LEN)",
        "if (given && VARSIZE_ANY_EXHDR(given) < IDEM_DIGEST_LEN)"),
    "handle_of_another_id": (
        "finish",
        "if (decoded->id == NULL || memcmp(decoded->id, &call->who.id, UUID_LEN) != 0)",
        "if (decoded->id == NULL)"),
    "repetition_under_another_fence": (
        "finish",
        "if (rec->fence != finish->fence)\n\t\treturn false;",
        ";"),
    "final_failure_repeats_as_retryable": (
        "finish",
        "(rec->state == RECORD_RETRYABLE && finish->retryable)",
        "rec->state == RECORD_RETRYABLE"),
    "repetition_with_another_result": (
        "finish",
        "same_json(rec->result, finish->stored);",
        "true;"),
    "renewed_after_its_end": (
        "takeover_overrun",
        "if (finish->what == FINISH_RENEW && found.lease_until <= finish->now)",
        "if (false)"),
    "renewing_shortens": (
        "lease 090_clock",
        "rec->lease_until = Max(rec->lease_until, clock_after(now, finish->lease));",
        "rec->lease_until = clock_after(now, finish->lease);"),
    "open_claim_under_another_fence": (
        "finish",
        "*rec = open->rec;\n\tif (rec->fence != finish->fence)",
        "*rec = open->rec;\n\tif (false)"),
    "changer_not_waited_for": (
        "finish_repeated finish_twice",
        "\t\tif (TransactionIdIsValid(found.changer))\n\t\t{\n\t\t\tstore_wait",
        "\t\tif (false)\n\t\t{\n\t\t\tstore_wait"),
    "delay_up_to_the_deadline": (
        "pace",
        "claim.delay >= deadline)",
        "claim.delay > deadline)"),
    "batch_out_of_order": (
        "once",
        "return order != 0 ? order : (left->position",
        "return (left->position"),
    "one_more_reconciler": (
        "reconcile",
        "if (work.tries < policy->reconcile_attempts)",
        "if (work.tries <= policy->reconcile_attempts)"),
    "reconciled_before_it_is_due": (
        "reconcile 023_between_looks",
        "\t\twork.due_at <= GetCurrentTimestamp() &&\n",
        ""),
    "reconciler_without_lock": (
        "reconcile_twice",
        "if (!open_claim_lock(&entry->id))\n\t\treturn false;\n\n\t/* probe again",
        "(void) open_claim_lock(&entry->id);\n\n\t/* probe again"),
    "resolved_while_running": (
        "reconcile overrule",
        "if (effective != EFFECTIVE_UNKNOWN && effective != EFFECTIVE_OVERRUN)",
        "if (false)"),
    "ended_lease_keeps_its_fence": (
        "expire_lease lease",
        "rec->lease_until = now;\n\trec->fence = claim_next_fence(rec->fence);",
        "rec->lease_until = now;"),
    "success_reopened": (
        "overrule",
        "(effective == EFFECTIVE_EXPIRED && rec->state != RECORD_SUCCEEDED)",
        "effective == EFFECTIVE_EXPIRED"),
    "reopened_with_old_limits": (
        "overrule",
        "rec->releases = rec->attempt;\n\trec->reopened_at = now;\n\trec->not_before",
        "rec->reopened_at = now;\n\trec->not_before"),
    "handed_out_to_anybody": (
        "access 023_between_looks",
        "TransactionIdIsValid(rec->changer) ||\n\t\t!access_permits(call->policy, &call->who, BIND_WORKER))",
        "TransactionIdIsValid(rec->changer))"),
    "purged_is_in_progress": (
        "status_snapshot purge_claim",
        "!status->held && !status->rec.being_deleted &&",
        "!status->held &&"),
    "rights_not_looked_at_again": (
        "run_revoked",
        "\tAcceptInvalidationMessages();\n\tcheck_function(func, &claim.call);",
        ""),
    "error_cut_too_short": (
        "run sizes",
        "while (too_long - fits > 1)",
        "while (too_long - fits > 2)"),
}

RECORD = {
    "released_attempts_count": (
        "pace",
        "return rec->attempt - rec->releases;",
        "return rec->attempt;"),
    "deadline_of_the_first_claim": (
        "overrule",
        "clock_after(Max(rec->claimed_at, rec->reopened_at), policy->deadline);",
        "clock_after(rec->claimed_at, policy->deadline);"),
    "horizons_not_looked_at": (
        "late_keys",
        "for (int i = 0; i < policy->n_horizons; i++)\n\t{\n\t\tif (policy->horizons[i].until >= key_time",
        "for (int i = 1; i < policy->n_horizons; i++)\n\t{\n\t\tif (policy->horizons[i].until >= key_time"),
    "forgotten_before_it_is_late": (
        "late_keys",
        "(!is_timed(call) || record_key_is_late(call, now));",
        "true;"),
    "overrun_without_tries": (
        "pace lease",
        "if (policy->retry_on_lease_expiry && record_tries_left(rec, policy, now))",
        "if (policy->retry_on_lease_expiry)"),
    "retention_from_the_clock": (
        "late_keys",
        "from = Max(from, call->who.key_time);",
        ";"),
    "pause_doubled_once_more": (
        "pace",
        "for (int64 i = 1; i < tries && pause < LONGEST_PAUSE; i++)",
        "for (int64 i = 1; i <= tries && pause < LONGEST_PAUSE; i++)"),
    "accepted_is_never_early": (
        "pace",
        "effective == EFFECTIVE_RETRYABLE || effective == EFFECTIVE_ACCEPTED);\n}\n\n/*\n * Returns when to ask",
        "effective == EFFECTIVE_RETRYABLE);\n}\n\n/*\n * Returns when to ask"),
    "asks_after_the_lease": (
        "lease status",
        "pause = Min(pause, rec->lease_until - now);",
        ";"),
    "collision_not_seen": (
        "errors identity",
        "same_text(rec->operation, who->operation) &&\n\t\tsame_text(rec->key, who->key))",
        "same_text(rec->operation, who->operation))"),
    "list_does_not_follow": (
        "lease reconcile",
        "\twork_follow(NULL, rec);\n",
        ""),
    "kept_with_the_lock_of_a_reader": (
        "heap",
        "kept->lockmode == lockmode && kept->owner",
        "kept->owner"),
    "kept_by_another_owner": (
        "heap",
        "kept->lockmode == lockmode && kept->owner == CurrentResourceOwner)",
        "kept->lockmode == lockmode)",
        "nothing stays pinned between two looks, and a table is closed under the owner that opened it"),
    "lock_of_the_portal": (
        "claim_savepoint claim_first",
        "CurrentResourceOwner = CurTransactionResourceOwner;\n\tresult",
        "result"),
    "prepared_is_over": (
        "claim_prepared",
        "return *holder > 0 || TransactionIdIsInProgress(xid);",
        "return *holder > 0;"),
    "lock_given_back_in_a_savepoint": (
        "claim_savepoint",
        "\tif (open->opened.level != entry->level)\n\t\treturn;\n\tdlist_delete(&open->finished.node);",
        "\tdlist_delete(&open->finished.node);"),
    "undone_completion_stays": (
        "left_open claim_savepoint",
        "\tentry->level = 0;\n\tn_open++;",
        "\tentry->level = 0;"),
    "one_lock_more": (
        "batch",
        "#define MAX_LOCKS 32",
        "#define MAX_LOCKS 33"),
    "claimed_by_another_fence": (
        "reopen_claim",
        "return found->fence == open->prior_fence &&\n\t\tfound->state",
        "return found->state"),
    "retryable_not_purged": (
        "purge_released",
        "open->prior_state == RECORD_RELEASED ||\n\t\t open->prior_state == RECORD_RETRYABLE);",
        "open->prior_state == RECORD_RELEASED);"),
    "reader_refused": (
        "finish_repeated finish",
        "if (repeated.entry.level == 0 || !TransactionIdIsValid(GetTopTransactionIdIfAny()))",
        "if (repeated.entry.level == 0)"),
    "behind_foreign_servers": (
        "060_postgres_fdw",
        "standard_ExecutorEnd(query_desc);\n\tmove_to_front();",
        "standard_ExecutorEnd(query_desc);"),
    "deferred_is_asked_too": (
        "left_open",
        "set->constraints == NIL &&\n\t\t!set->deferred;",
        "set->constraints == NIL;"),
    "note_outlives_its_attempt": (
        "reconcile",
        "before && found && before->fence == after->fence;",
        "before && found;"),
    "handed_out_before_it_is_due": (
        "accept pace",
        "work->due_at <= range->due &&",
        "true &&"),
    "entry_of_a_changer": (
        "start_next_twice",
        "(range->queue && TransactionIdIsValid(scan->changer))",
        "false",
        "it saves a look: the changer of an entry is at its record, too, or has the lock of its id"),
    "latest_first": (
        "accept reconcile",
        "range->current->due_at < first->current->due_at))",
        "range->current->due_at > first->current->due_at))"),
    "segment_closed_early": (
        "090_clock",
        "((latest - back + 1) * WINDOW_MS",
        "((latest - back) * WINDOW_MS"),
    "one_record_too_many": (
        "purge",
        "if (batch->removed >= batch->max_records)",
        "if (batch->removed > batch->max_records)"),
    "purged_from_one_list": (
        "work_list",
        "\t\twork_follow(&rec, NULL);\n",
        ""),
    "policies_not_locked": (
        "policy_define",
        "\tif (!ConditionalLockRelationOid(catalog_relid(TABLE_POLICY), ShareLock))\n\t\treturn false;\n",
        ""),
    "emptied_while_it_is_read": (
        "segments",
        "over = rel->rd_refcnt == 1 && all_forgotten",
        "over = all_forgotten",
        "TRUNCATE refuses a table that a query of its own session reads, and what raises is passed"),
    "outdated_end_stays": (
        "segments",
        "(range->latest == NEVER && exact->latest != NEVER) ||",
        ""),
    "part_of_a_range": (
        "purge_ranges",
        "if (!range->known && range->end - range->first == ranges->blocks_per_range &&",
        "if (!range->known &&"),
    "shard_asked_once": (
        "place_move",
        "hold_shards();\n\tplace = first_place(lock_shards(principal));",
        "hold_shards();"),
    "was_never_here": (
        "place_move",
        "was_here = was_here || (place && place->here);",
        "was_here = false;"),
    "shards_asked_once": (
        "place_move",
        "} while (VARSIZE(before) != VARSIZE(places) || memcmp(before, places, VARSIZE(places)) != 0);",
        "} while (false);",
        "what was waited for shows at the second look; a third is for a move between a look and its lock"),
    "shards_not_held": (
        "place_move",
        "\thold_shards();\n\tplace =",
        "\tplace ="),
}

PARAMS = {
    "order_of_utf8": (
        "canonical",
        "return (byte & 0xFE) == 0xEE ? byte + 0x10 : byte;",
        "return byte;"),
    "longer_name_first": (
        "canonical",
        "utf16_rank(other);\n\t}\n\treturn left->len < right->len;",
        "utf16_rank(other);\n\t}\n\treturn left->len > right->len;"),
    "limit_off_by_one": (
        "sizes",
        "return length.bytes > max_bytes;",
        "return length.bytes >= max_bytes;"),
    "escapes_too_short": (
        "sizes",
        "&& string[i] != '\\0' ? 1 : 5;",
        "&& string[i] != '\\0' ? 1 : 4;"),
    "exponent_too_early": (
        "canonical",
        "if (point > 21 || point <= -6)",
        "if (point > 20 || point <= -6)"),
    "sixteen_digits_as_given": (
        "fingerprint canonical",
        "(number->count <= 15 && number->point > -300",
        "(number->count <= 17 && number->point > -300"),
    "shortest_inside_only": (
        "canonical fingerprint",
        "if (strtod(printed, NULL) == value)",
        "if (false)"),
    "length_of_a_hundred": (
        "sizes",
        "1 + (first > 9) + (first > 99) + (first > 999);",
        "1 + (first > 9) + (first > 100) + (first > 999);"),
    "any_variant": (
        "identity",
        "if (!identity_is_uuid(key) || key[14] != '7' ||\n\t\tstrchr(\"89abAB\", key[19]) == NULL)",
        "if (!identity_is_uuid(key) || key[14] != '7')"),
    "ulid_too_late": (
        "identity",
        "key[0] > '7')",
        "key[0] > '8')"),
    "time_among_the_rest": (
        "identity",
        "who->id.data[0] |= 0x80;",
        ";"),
    "ticks_repeat": (
        "090_clock",
        "latest = Max(tick, latest + 1);",
        "latest = Max(tick, latest);"),
    "member_named_twice": (
        "fingerprint_text",
        "if (parsing->result->val.object.nPairs < given && parsing->twice_at == 0)",
        "if (false)"),
    "element_by_number": (
        "normalisation",
        "if (token[0] != '\\0' && token[strspn(token, \"0123456789\")] == '\\0')",
        "if (false)"),
    "in_the_way_is_dropped": (
        "normalisation",
        "if (here.choosing && is_in_the_way(container, here.node))",
        "if (false)"),
    "shorter_element_last": (
        "normalisation",
        "return order != 0 ? order < 0 : left->len < right->len;",
        "return order != 0 ? order < 0 : left->len > right->len;"),
    "unchecked_bytes": (
        "encodings",
        "return pg_verify_mbstr(PG_UTF8, string, len, true) ?",
        "return true ?"),
}

MUTANTS = {**CLAIM, **RECORD, **PARAMS}


def changes(name):
    """A row's change as plant() takes it."""
    row = MUTANTS[name]
    return [(re.escape(row[1]), lambda match: row[2])]


def main():
    if sys.argv[1] == "list":
        print("\n".join(MUTANTS))
    elif sys.argv[1] == "tests":
        print(MUTANTS[sys.argv[2]][0])
    elif sys.argv[1] == "argued":
        print("".join(MUTANTS[sys.argv[2]][3:]))
    else:
        plant(sys.argv[2], changes(sys.argv[2]), sys.argv[3])


if __name__ == "__main__":
    main()
