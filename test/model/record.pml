/*
 * The life of one record, and everybody who may touch it.
 *
 * Three sessions, in any order.  Owners claim atomically or with a lease, take
 * over, complete, fail so that it may be retried, release, are unsure, finish
 * late, finish again, cancel, roll back; keepers reconcile, resolve, end leases,
 * purge and cancel.  With OWNERS=2 the third session is a keeper, with OWNERS=3 all are
 * owners.  The clock ends leases and retention whenever it likes.
 *
 * A transaction may end without commit at each of its steps, by an error, a
 * kill or a crash.  A crash of the server is all open transactions ending so,
 * one after the other and nothing in between.  Clients remember what they knew,
 * and may not have heard of a commit.
 *
 * What is modelled is the protocol of src/claim/{claim,finish,reconcile}.c and src/record/{open_claims,store}.c:
 *
 * - the lock of the id is taken without waiting, and who gets it looks again;
 * - a look is dirty: it sees the last committed version, and that another open
 *   transaction is writing the row;
 * - a version is replaced by compare and swap on the version looked at; who
 *   finishes waits for an open writer and looks again, a claim does not wait;
 * - an atomic claim writes nothing before it is finished, a leased one writes at
 *   once; the lock is given back when the row stands;
 * - commit makes the row visible; the locks go after that, in a step of their own.
 *
 * The work list is a hint and is left out, but for the fence of the last
 * reconciler.  Failed for good is the same as succeeded here, and idem_reopen,
 * the exception to invariant 8, is left out.  So are retry_after and the limits,
 * which only refuse what is granted here.
 *
 * The assertions are invariants 1, 6, 7, 8 and 9 of docs/contract.md, section
 * 8, and that whoever is told to execute is alone.  Each BREAK_... takes one
 * rule away, and must make one of them fail:
 *
 *   BREAK_LOOK_AGAIN   who gets the lock trusts what it saw before
 *   BREAK_DIRTY        a look does not see what is not committed
 *   BREAK_LOCK_ORDER   the lock is given back before the row stands
 *   BREAK_SWAP         who finishes writes over whatever is there by then
 *   BREAK_FENCE        who finishes looks at the state, not at the fence
 *   BREAK_REPEATED     a completion said again by a later transaction may commit
 *   BREAK_UNKNOWN      an overrun lease is executed again whatever the policy
 *   BREAK_RESOLVE      a record is resolved whatever has become of it
 *   BREAK_REVOKE       a record changed past its owner keeps the owner's fence
 *   BREAK_CANCEL       cancelling does not mind that somebody executes
 *   BREAK_PURGE        purge takes whatever is old
 *   BREAK_PURGED       a claim whose forgotten record was purged is lost
 */

#define SESSIONS	3
#ifndef OWNERS
#define OWNERS		2
#endif
#ifndef FENCES
#define FENCES		3			/* grants, all in all */
#endif
#define NOBODY		SESSIONS

/* States of the row, and UNSURE: processing, and over from now on. */
#define ABSENT		0
#define PROCESSING	1
#define SUCCEEDED	2
#define RETRYABLE	3
#define CANCELLED	4
#define RELEASED	5
#define UNSURE		6

#define FINAL(s)	((s) == SUCCEEDED || (s) == CANCELLED)
#define ENDS(s)		(FINAL(s) || (s) == RELEASED)

/* The row as committed, and what the clock says of it. */
byte state, fence;
bool over;						/* its lease is over */
bool past;						/* its retention and guard are over */

/* Who is writing it, and what. */
byte writer = NOBODY;
byte new_state, new_fence;

/*
 * Is the version a session has looked at still the committed one?  This stands
 * for the place of the version, by which it is swapped.
 */
bool fresh[SESSIONS];

byte id_lock = NOBODY;
byte reconciler = NOBODY;		/* the last one the record was handed to */
byte last_fence;				/* of all handed out */
bool retry;						/* policy on_lease_expiry */

/* For the assertions only. */
bool done_under[FENCES + 1];	/* a transaction with work under it committed */
bool revoked[FENCES + 1];		/* taken from its owner: not executed, or its lease ended */
byte executing = NOBODY;		/* has an atomic claim open */

/* What a claim may take: the rows of the table that say execute. */
#define FREE	(state == ABSENT || state == RETRYABLE || state == RELEASED || \
				 (FINAL(state) && past))
#ifdef BREAK_UNKNOWN
#define OVERRUN	(state == PROCESSING && over)
#else
#define OVERRUN	(state == PROCESSING && over && retry)
#endif

/* Seen in a look: another open transaction is writing the row. */
#ifdef BREAK_DIRTY
#define BUSY	false
#else
#define BUSY	(writer != NOBODY)
#endif

inline write(what, under)
{
	writer = me; new_state = what; new_fence = under
}

/*
 * Write under a new fence, which nobody is told: mine is that of the owner.
 */
inline revoke(what_now)
{
#ifdef BREAK_REVOKE
	write(what_now, mine)
#else
	last_fence++;
	write(what_now, last_fence)
#endif
}

inline stop_writing()
{
	writer = NOBODY; new_state = 0; new_fence = 0
}

/* The row stands: the lock is given back now, or with the transaction. */
inline stands()
{
	if
	:: id_lock == me -> id_lock = NOBODY
	:: true
	fi
}

/*
 * Whoever is told to execute is alone, and what it was told is true.  (An old
 * owner may finish an overrun lease at any time, and purge may remove what is
 * past.)
 */
inline check_grant()
{
	assert(executing == NOBODY);
	assert(prior == PROCESSING || ((prior == RELEASED || FINAL(prior)) && past) ||
		   (writer == NOBODY && fresh[me]) || ((prior == RELEASED || FINAL(prior)) && state == ABSENT))
}

/*
 * The transaction ends well: what it wrote is the row, and the work that goes
 * with it has happened.  Its lock, if it has one yet, goes in a later step.
 */
inline commit()
{
	d_step {
		/* 8: an outcome stays until it is forgotten */
		assert(!(FINAL(state) && !past));
		/* 9: only what is forgotten is removed */
		assert(!(new_state == ABSENT && !(ENDS(state) && past)));
		/* 6: an older owner never comes after a newer one */
		assert(new_state == ABSENT || new_fence >= fence);
		/* 7: a claim changes hands only when it is overrun, by policy, or is taken from its owner */
		assert(!(state == PROCESSING && new_fence != fence && !(over && retry) && !revoking));
		/* an owner it was taken from says nothing any more */
		assert(revoking || new_state == ABSENT || !revoked[new_fence]);
		/* 7: and is resolved only when it is unknown */
		assert(!(resolving && !(state == PROCESSING && over)));
		if
		:: !resolving && (new_state == SUCCEEDED || new_state == RETRYABLE) ->
			/* 1: of all transactions with work for one attempt, one commits */
			assert(!done_under[new_fence]);
			done_under[new_fence] = true
		:: else
		fi;
		if :: revoking -> revoked[fence] = true :: else fi;
		state = (new_state == UNSURE -> PROCESSING : new_state);
		over = (new_state == UNSURE);
		fence = new_fence; past = false;
		stop_writing();
		fresh[0] = false; fresh[1] = false; fresh[2] = false;
		reconciler = NOBODY
	}
}

/*
 * Replace the version looked at, waiting for another writer; look again if it
 * was no longer there.
 */
#ifdef BREAK_SWAP
#define STILL_THERE	true
#else
#define STILL_THERE	fresh[me]
#endif

#define ENDS_BADLY	atomic { true -> goto begin }

proctype Session(byte me)
{
	byte permit;				/* fence of a leased claim its client knows of */

	/* this transaction */
	byte mine;					/* fence of its atomic claim, or of what it resolves */
	byte prior, prior_fence;	/* what the claim took over */
	bool resolving, revoking, cancel;
	byte what;

begin:
	atomic {
		/* what the last transaction has left goes with it */
		if :: writer == me -> stop_writing() :: else fi;
		if :: executing == me -> executing = NOBODY :: else fi;
		if :: id_lock == me -> id_lock = NOBODY :: else fi;
		mine = 0; prior = 0; prior_fence = 0; what = 0;
		resolving = false; revoking = false; cancel = false;
		fresh[me] = false
	}
end:
	if
	/* idem_claim, idem_cancel: a first look has found the key free */
	:: atomic { me < OWNERS && last_fence < FENCES && (FREE || OVERRUN) -> goto claim }
	:: atomic { last_fence < FENCES && FREE -> cancel = true; goto claim }
#ifdef BREAK_CANCEL
	:: atomic { last_fence < FENCES && state == PROCESSING -> cancel = true; goto claim }
#endif
	/* its owner, again: the first answer was lost */
	:: atomic { me < OWNERS && writer == NOBODY && state == PROCESSING && !over && permit != fence -> permit = fence; goto end }
	:: atomic { permit != 0 && state != ABSENT -> goto finish }
	:: atomic { me >= OWNERS && state == PROCESSING && over && id_lock == NOBODY -> id_lock = me; goto reconcile }
	:: atomic { reconciler == me && state == PROCESSING -> resolving = true; goto resolve }
	:: atomic { me >= OWNERS && state == PROCESSING && !over && last_fence < FENCES -> goto expire }
	:: atomic { me >= OWNERS && ENDS(state) -> goto purge }
	fi;

claim:
#ifdef BREAK_LOOK_AGAIN
	atomic { fresh[me] = true; prior = state; prior_fence = fence };
#endif
	atomic {
		if
		:: id_lock == NOBODY || id_lock == me -> id_lock = me
		:: else -> goto begin		/* in_progress */
		fi
	}
	/* with the lock, look again */
look_again:
	atomic {
#ifndef BREAK_LOOK_AGAIN
		fresh[me] = true; prior = state; prior_fence = fence;
		if
		:: !BUSY && FREE
		:: !BUSY && OVERRUN && !cancel
#ifdef BREAK_CANCEL
		:: !BUSY && state == PROCESSING && cancel
#endif
		:: else -> goto begin		/* in_progress, replay, unknown */
		fi;
#endif
		if
		:: last_fence < FENCES
		:: true -> goto begin
		fi
	}
	atomic {
		if
		:: last_fence >= FENCES -> goto begin
		:: last_fence < FENCES && !cancel -> goto atomically
		:: last_fence < FENCES && !cancel -> what = PROCESSING
		:: last_fence < FENCES && cancel -> what = CANCELLED
		:: true -> goto begin
		fi;
		/* write now: with a lease, or cancelled */
		if
		:: writer == NOBODY && fresh[me] ->
			check_grant();
			last_fence++;
			write(what, last_fence);
			if :: what == PROCESSING -> permit = last_fence :: else fi;
			stands();
			what = 0; prior = 0; prior_fence = 0; cancel = false; fresh[me] = false
		:: else -> what = 0; prior = 0; prior_fence = 0; fresh[me] = false; goto look_again
		fi
	}
	goto committing;

atomically:
	atomic {
		/* a revocation, which takes no lock, may have had the last fence */
		if :: last_fence >= FENCES -> goto begin :: else fi;
		check_grant();
		executing = me; fresh[me] = false;
		last_fence++; mine = last_fence;
#ifdef BREAK_LOCK_ORDER
		id_lock = NOBODY
#endif
	}
	/* finished; or not, and COMMIT is refused */
writes:
	atomic {
		if
		:: true -> goto begin
		:: state == ABSENT && writer == NOBODY ->
#ifdef BREAK_PURGED
			/* who has lost, has lost to somebody */
			assert(prior != RELEASED);
#endif
			goto write_it
		:: state == ABSENT && writer != NOBODY -> goto begin	/* ID002 */
		:: state != ABSENT && prior == state && prior_fence == fence -> fresh[me] = true
		:: state != ABSENT && !(prior == state && prior_fence == fence) -> goto begin	/* ID002 */
		fi
	}
	atomic {
		if
		:: true -> goto begin
		:: writer == NOBODY && STILL_THERE
		:: writer == NOBODY && !STILL_THERE -> fresh[me] = false; goto writes
		fi;
write_it:
		if
		:: write(SUCCEEDED, mine)
		:: write(RETRYABLE, mine)
		:: prior != ABSENT -> write(RELEASED, mine)
		fi;
		executing = NOBODY; mine = 0; prior = 0; prior_fence = 0; fresh[me] = false;
		stands()
	}
	goto committing;

	/* complete, fail, release, unsure of a leased claim, in time or late */
finish:
	atomic {
		if
		:: true -> goto begin
#ifdef BREAK_FENCE
		:: state == PROCESSING -> fresh[me] = true
#else
		:: state == PROCESSING && fence == permit -> fresh[me] = true
#endif
#ifdef BREAK_REPEATED
		:: (state == SUCCEEDED || state == RETRYABLE) && fence == permit ->
			assert(!done_under[permit])		/* 1: as in commit() */
#endif
		/* else ID002; or said again: it may not commit its work */
		fi
	}
	atomic {
		if
		:: true -> goto begin
		:: writer == NOBODY && STILL_THERE ->
			if
			:: write(SUCCEEDED, permit)
			:: write(RETRYABLE, permit)
			:: write(RELEASED, permit)
			:: !over -> write(UNSURE, permit)
			fi;
			fresh[me] = false
		:: writer == NOBODY && !STILL_THERE -> fresh[me] = false; goto finish
		fi
	}
	goto committing;

	/* with the lock, until the end */
reconcile:
	atomic {
		if
		:: state == PROCESSING && over && !retry && !BUSY -> fresh[me] = true
		:: true -> goto begin
		fi
	}
	/* noted and committed; its owner may finish meanwhile */
	atomic {
		if
		:: fresh[me] -> reconciler = me
		:: true
		fi;
		fresh[me] = false
	}
	goto begin;

resolve:
	atomic {
		if
		:: true -> goto begin
#ifdef BREAK_RESOLVE
		:: state != ABSENT -> mine = fence; fresh[me] = true
#else
		:: state == PROCESSING && over && reconciler == me -> mine = fence; fresh[me] = true
#endif
		fi
	}
	atomic {
		if
		:: true -> goto begin
		:: writer == NOBODY && STILL_THERE ->
			if
			:: write(SUCCEEDED, mine)
			:: last_fence < FENCES -> revoking = true; revoke(RELEASED)	/* not_executed */
			fi;
			fresh[me] = false; mine = 0
		:: writer == NOBODY && !STILL_THERE -> fresh[me] = false; mine = 0; goto resolve
		fi
	}
	goto committing;

expire:
	atomic {
		if
		:: state == PROCESSING && !over -> mine = fence; fresh[me] = true
		:: true -> goto begin
		fi
	}
	atomic {
		if
		:: true -> goto begin
		:: writer == NOBODY && STILL_THERE && last_fence < FENCES ->
			revoking = true; revoke(UNSURE);
			fresh[me] = false; mine = 0
		:: writer == NOBODY && !STILL_THERE -> fresh[me] = false; mine = 0; goto expire
		fi
	}
	goto committing;

purge:
	atomic {
		if
#ifdef BREAK_PURGE
		:: ENDS(state) && !BUSY -> fresh[me] = true
#else
		:: ENDS(state) && past && !BUSY -> fresh[me] = true
#endif
		:: true -> goto begin
		fi
	}
	atomic {
		if
		:: writer == NOBODY && fresh[me] -> write(ABSENT, 0); fresh[me] = false
		:: else -> goto begin
		fi
	}
	goto committing;

committing:
	if
	:: commit()
	:: ENDS_BADLY
	fi;
	goto begin
}

/* Time passes for what is committed. */
active proctype Clock()
{
end:
	do
	:: d_step { state == PROCESSING && !over -> over = true }
	:: d_step { ENDS(state) && !past -> past = true }
	od
}

init {
	atomic {
		if :: retry = true :: retry = false fi;
		run Session(0); run Session(1); run Session(2)
	}
}
