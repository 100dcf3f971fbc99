/* The life of pages that a handoff shares, for spin (scripts/spin.sh).
 *
 * One source page of the prefill worker is handed to a decode worker by PUSH and a one-sided read,
 * which takes two steps (its halves) and a third that compares the generation; PUSH stands for PUSH
 * and COMMIT. Every order of events is tried, so a process that takes no step for long is one that is
 * frozen, and wakes up with everything in its socket that was sent to it before its connection was
 * closed. Two attempts of one handoff may run, on one decode worker (over one connection) or
 * on two; either side may give up at any time; a decode worker may crash, with or without anybody
 * being told; timers may fire at any moment at which they are armed. As soon as a page is free
 * somebody else takes it and writes other bytes.
 *
 * With UNFENCED the transport cannot stop a copy: one that is given up may still write, so its page
 * keeps its writer (quarantine), which only the process's end takes.
 *
 * Properties, each with the name under which it is reported; -DONLY=NAME looks at that one alone
 *   BELIEVED   no read of a reallocated page is believed: a sequence that starts has the handoff's bytes
 *   READ       no page is given out while a connected peer reads it
 *   WRITTEN    no page is given out while a copy still writes into it: whoever gets it next finds its
 *              own bytes in it at the end
 *   LEAKED     no page leaks: at rest every count is zero
 *   every wait ends (an "invalid end state"): no state without a next step but the ends marked here
 *   every run ends (a "non-progress cycle", checked apart, with TROUBLE bounded)
 *
 * What mirrors what
 *   Sender     kv/handoff/send_handoff.cc (on_open, on_grant, on_busy, on_ack, on_abort, on_abort_ack,
 *              on_peer_lost, on_cancel, on_time, abort_attempt, end_attempt; on_renew only moves a
 *              timer, which here may fire at any moment) over the counts of
 *              kv/pages/page_pool.cc (add_reader, drop)
 *   Receiver   kv/handoff/receive_handoff.cc (on_offer .. on_started, on_abort, fail, settle), the
 *              copy itself kv/transfer's page reader
 *   SenderTenant, RELEASE   anybody else who allocates from the same PagePool, on either side
 *
 * Each of these switches takes one protection away; scripts/spin.sh knows which property must fail then:
 *   NO_READERS      the pool does not count readers
 *   NO_GENERATION   the receiver does not compare generations after reading
 *   TIME_FREES      a timer drops readers without closing the connection
 *   NO_NONCE        an acknowledgement counts for whatever attempt is current
 *   EARLY_RELEASE   the receiver gives its page back, and acknowledges, while copies are under way
 *   NO_COVERAGE     a commit is believed although a copy failed
 *   NO_FENCE        nothing ends the wait for an acknowledgement that does not come
 *   FENCE_LEAKS     a peer that is fenced keeps its readers
 *   IDLE_RENEW      the receiver renews although its copy does not get on
 *   NO_QUARANTINE   (with UNFENCED) a page that may still be written is given back
 */

/* A property that fails is set, so that what spin prints is its name. */
#ifndef ONLY
#define ONLY EVERY
#endif
#define EVERY 15
#define BELIEVED 1
#define READ 2
#define WRITTEN 4
#define LEAKED 8
bool broken_BELIEVED, broken_READ, broken_WRITTEN, broken_LEAKED;
#define MUST(name, broken, condition) \
  broken = ((ONLY & name) && !(condition)); \
  assert(!broken)

#define OURS 1
#define THEIRS 2

mtype = { OPEN, OFFER, GRANT, BUSY, PUSH, RENEW, ACK, ABORT, ABORT_ACK, LOST, CLOSED };

/* From receivers: kind, attempt, connection. To the receiver of an attempt: kind, generation. */
chan to_sender = [5] of { mtype, byte, byte };
chan to_receiver0 = [5] of { mtype, byte };
chan to_receiver1 = [5] of { mtype, byte };
#define SEND(a, kind, x) if :: a == 0 -> to_receiver0!kind,x :: a == 1 -> to_receiver1!kind,x fi

/* The source page. */
byte owners = 1;
byte readers = 0;
byte generation = 1;
byte source[2] = OURS;

/* Connections by host; a closed one is never used again. */
#ifdef ONE_HOST
#define HOST(a) 0
#else
#define HOST(a) (a)
#endif
byte connection[2] = 1;      /* the sender's current one with that host */
byte dialed[2] = 0;          /* by attempt: over which it opened */
bool opened[2];
bool dead[2];                /* by host */

/* What goes wrong of itself: timers that fire early, cancels, a crash. When that is used up timers
 * fire only when nothing else can happen. */
#ifndef TROUBLE
#define TROUBLE 4
#endif
byte trouble = TROUBLE;
bool forgotten;              /* the sender has forgotten the handoff */
bool ended[2];               /* an attempt has */

/* Destination pages, one for each attempt. */
byte target0[2];
byte target1[2];
bool reserved[2];            /* owner and writer of the receiving attempt */
bool used[2];                /* somebody had it */
#define NONE 0
#define ASKED 1
#define HALF 2
#define WHOLE 3
#define COVERED 4
byte copy[2];                /* by attempt: what became of its copy */
#define COPYING(a) (copy[a] == ASKED || copy[a] == HALF || copy[a] == WHOLE)
#ifdef UNFENCED
bool stray[2];               /* by attempt: its copy was given up and may still write */
#ifdef NO_QUARANTINE
#define STRAY(a) false
#else
#define STRAY(a) stray[a]
#endif
#else
#define STRAY(a) false
#endif
#define CONNECTED(a) (opened[a] && dialed[a] == connection[HOST(a)])

/* --- the prefill worker ------------------------------------------------------------------------ */

byte current = 2;            /* attempt; 2: none */
bool granted;
bool finished;
bool drain[2];               /* by attempt: its reader waits for the acknowledgement */

inline release() { readers-- }

/* abort_attempt */
inline give_up() {
  SEND(current, ABORT, 0);
  if
  :: granted -> drain[current] = true
  :: else
  fi;
  granted = false;
  current = 2
}

/* end_attempt: the peer has acknowledged, or is fenced */
inline end_current() {
  if
  :: granted -> release()
  :: else
  fi;
  granted = false;
  current = 2
}

inline finish() {
  if
  :: !finished -> finished = true; owners--
  :: else
  fi
}

/* on_peer_lost */
inline lose(h) {
  connection[h]++;
  if
  :: current < 2 && HOST(current) == h -> end_current()
  :: else
  fi;
  if
  :: drain[0] && HOST(0) == h -> drain[0] = false; release()
  :: else
  fi;
  if
  :: drain[1] && HOST(1) == h -> drain[1] = false; release()
  :: else
  fi
}

/* An acknowledgement, by ABORT or ABORT_ACK, of attempt a. */
inline acknowledge(a) {
  if
  :: drain[a] -> drain[a] = false; release()
  :: else
  fi
#ifdef NO_NONCE
  ;
  if
  :: current < 2 && HOST(current) == HOST(a) -> end_current()
  :: else
  fi
#endif
}

#define ACTIVE (!finished || current < 2 || drain[0] || drain[1])

active proctype Sender() {
  byte a, c;
  do
  :: atomic { to_sender?OPEN,a,c ->
       if
       :: c != connection[HOST(a)]                      /* said by an earlier connection */
       :: else ->
          if
          :: finished -> SEND(a, ABORT, 0)
          :: else ->
             if
             :: current < 2 -> give_up()                /* superseded */
             :: else
             fi;
             current = a;
             SEND(a, OFFER, 0)
          fi
       fi; a = 0; c = 0 }
  :: atomic { to_sender?GRANT,a,c ->
       if
       :: c == connection[HOST(a)] && current == a && !granted ->
          granted = true;
          readers++;
          SEND(a, PUSH, generation)
       :: else
       fi; a = 0; c = 0 }
  :: atomic { to_sender?BUSY,a,c ->
       if
       :: c == connection[HOST(a)] && current == a && !granted -> current = 2
       :: else
       fi; a = 0; c = 0 }
  :: to_sender?RENEW,_,_
  :: atomic { to_sender?ACK,a,c ->
       if
       :: c == connection[HOST(a)] && current == a && granted -> end_current(); finish()
       :: else
       fi; a = 0; c = 0 }
  :: atomic { to_sender?ABORT,a,c ->
       if
       :: c == connection[HOST(a)] ->
          if
          :: current == a -> end_current()
          :: else
          fi;
          acknowledge(a)
       :: else
       fi; a = 0; c = 0 }
  :: atomic { to_sender?ABORT_ACK,a,c ->
       if
       :: c == connection[HOST(a)] -> acknowledge(a)
       :: else
       fi; a = 0; c = 0 }
  :: atomic { to_sender?LOST,a,c ->                      /* here a is a host */
       if
       :: c == connection[a] -> lose(a)
       :: else
       fi; a = 0; c = 0 }
  :: atomic { current < 2 && trouble > 0 -> trouble--; give_up() }  /* a timer, or a cancel */
  :: atomic { current < 2 && timeout -> give_up() }
  :: atomic { current == 2 && !finished && trouble > 0 -> trouble--; finish() }  /* the lease */
  :: atomic { current == 2 && !finished && timeout -> finish() }
#ifndef NO_FENCE
  :: atomic { (drain[0] || drain[1]) && (trouble > 0 || timeout) ->  /* no acknowledgement */
       if
       :: trouble > 0 -> trouble--
       :: else
       fi;
#ifdef TIME_FREES
       if
       :: drain[0] -> drain[0] = false; release()
       :: else -> drain[1] = false; release()
       fi
#else
       a = (drain[0] -> HOST(0) : HOST(1));
       if
       :: opened[0] && HOST(0) == a && dialed[0] == connection[a] -> to_receiver0!CLOSED,0
       :: else
       fi;
       if
       :: opened[1] && HOST(1) == a && dialed[1] == connection[a] -> to_receiver1!CLOSED,0
       :: else
       fi;
#ifdef FENCE_LEAKS
       connection[a]++; drain[0] = false; drain[1] = false;
#else
       lose(a);
#endif
       a = 0
#endif
     }
#endif
  :: atomic { !ACTIVE -> forgotten = true; break }
  od;
  /* The handoff is forgotten; what still comes is answered. */
end_done:
  do
  :: atomic { to_sender?OPEN,a,c ->
       if
       :: c == connection[HOST(a)] -> SEND(a, ABORT, 0)
       :: else
       fi; a = 0; c = 0 }
  :: to_sender?GRANT,_,_
  :: to_sender?BUSY,_,_
  :: to_sender?RENEW,_,_
  :: to_sender?ACK,_,_
  :: to_sender?ABORT,_,_
  :: to_sender?ABORT_ACK,_,_
  :: to_sender?LOST,_,_
  od
}

#ifdef NO_READERS
#define FREE true
#else
#define FREE (readers == 0)
#endif

/* Whoever is next takes the page and writes other bytes; that it holds it for a while adds nothing. */
active proctype SenderTenant() {
  atomic { owners == 0 && FREE ->
    MUST(READ, broken_READ, !(CONNECTED(0) && COPYING(0)) && !(CONNECTED(1) && COPYING(1)));
    generation++;
    source[0] = THEIRS;
    source[1] = THEIRS }
}

/* --- a decode worker: one attempt -------------------------------------------------------------- */

#define SAY(kind) to_sender!kind,a,dialed[a]

#ifdef NO_GENERATION
#define INTACT true
#else
#define INTACT (wanted == generation)
#endif
#ifdef NO_COVERAGE
#define ALL_COVERED (wanted && !COPYING(a))
#define FAILED skip
#else
#define ALL_COVERED (copy[a] == COVERED)
#define FAILED farewell = ABORT; goto draining
#endif
#ifdef UNFENCED
#define GIVEN_UP COPYING(a) -> stray[a] = (copy[a] != WHOLE)
#else
#define GIVEN_UP copy[a] == ASKED || copy[a] == WHOLE ->  /* stopped, or done */ skip
#endif
#if defined(UNFENCED) && !defined(NO_QUARANTINE)
#define MAY_RELEASE (reserved[a] && !stray[a])
#else
#define MAY_RELEASE reserved[a]
#endif
#ifdef EARLY_RELEASE
#define EARLY(target) atomic { RELEASE(target); SAY_FAREWELL; farewell = CLOSED };
#else
#define EARLY(target)
#endif

/* Somebody else takes the page at once, and must find its own bytes in it at the end. */
#define RELEASE(target) reserved[a] = false; target[0] = THEIRS; target[1] = THEIRS

#define SAY_FAREWELL \
  if \
  :: farewell == ABORT -> SAY(ABORT) \
  :: farewell == ABORT_ACK -> SAY(ABORT_ACK) \
  :: else \
  fi

#ifdef IDLE_RENEW
#define IDLE :: atomic { copy[a] == HALF -> SAY(RENEW) }
#else
#define IDLE
#endif

#define READ_STEPS(target) \
  IDLE \
  :: atomic { copy[a] == ASKED -> target[0] = source[0]; copy[a] = HALF } \
  :: atomic { copy[a] == HALF -> target[1] = source[1]; copy[a] = WHOLE; \
       if :: SAY(RENEW) :: skip fi }

/* A channel or an array cannot be chosen by an expression, so the body is a macro. */
#define BODY(a_, inbox, target) \
  byte a = a_; byte wanted; mtype farewell = CLOSED; \
  { \
  atomic { dialed[a] = connection[HOST(a)]; opened[a] = true; SAY(OPEN) }; \
  /* OPENING */ \
  if \
  :: atomic { inbox?OFFER,_ -> \
       if \
       :: reserved[a] = true; used[a] = true; SAY(GRANT) \
       :: trouble > 0 -> trouble--; SAY(BUSY); goto over \
       fi } \
  :: atomic { inbox?ABORT,_ -> SAY(ABORT_ACK); goto over } \
  :: atomic { inbox?CLOSED,_ -> goto over } \
  :: atomic { trouble > 0 -> trouble--; SAY(ABORT); goto over } \
  :: atomic { timeout -> SAY(ABORT); goto over } \
  fi; \
  /* RECEIVING */ \
  do \
  :: atomic { inbox?PUSH,wanted -> copy[a] = ASKED } \
  READ_STEPS(target) \
  :: atomic { copy[a] == WHOLE -> if :: INTACT -> copy[a] = COVERED :: else -> copy[a] = NONE; FAILED fi } \
  :: atomic { ALL_COVERED -> \
       MUST(BELIEVED, broken_BELIEVED, target[0] == OURS && target[1] == OURS); \
       RELEASE(target); copy[a] = NONE; SAY(ACK); goto over } \
  :: atomic { inbox?ABORT,_ -> farewell = ABORT_ACK; goto draining } \
  :: atomic { inbox?CLOSED,_ -> farewell = CLOSED; goto draining } \
  :: atomic { trouble > 0 -> trouble--; farewell = ABORT; goto draining } \
  :: atomic { timeout -> farewell = ABORT; goto draining } \
  od; \
draining: \
  EARLY(target) \
  do \
  READ_STEPS(target) \
  :: atomic { GIVEN_UP; copy[a] = NONE } \
  :: atomic { inbox?ABORT,_ -> farewell = ABORT_ACK } \
  :: atomic { inbox?CLOSED,_ -> farewell = CLOSED } \
  :: atomic { !COPYING(a) -> break } \
  od; \
  atomic { copy[a] = NONE; if :: MAY_RELEASE -> RELEASE(target) :: else -> reserved[a] = false fi; SAY_FAREWELL }; \
over: \
  atomic { wanted = 0; farewell = CLOSED; ended[a] = true }; \
end_over: \
  do \
  :: atomic { inbox?ABORT,_ -> SAY(ABORT_ACK) } \
  :: inbox?OFFER,_ \
  :: inbox?PUSH,_ \
  :: inbox?CLOSED,_ \
  od \
  } unless { atomic { dead[HOST(a_)] -> wanted = 0; farewell = CLOSED } }; \
end_dead: \
  do \
  :: inbox?_,_ \
  od

active proctype Receiver0() { BODY(0, to_receiver0, target0) }
active proctype Receiver1() { BODY(1, to_receiver1, target1) }

#ifdef UNFENCED
/* What was given up writes, once, at any time. */
active proctype Stray() {
end_stray:
  if
  :: atomic { stray[0] -> target0[0] = OURS }
  :: atomic { stray[1] -> target1[0] = OURS }
  fi
}
#endif

/* One of the decode workers may die, and the sender may or may not be told. */
inline die() {
  dead[0] = true;
  reserved[0] = false;
  copy[0] = NONE;
#ifdef ONE_HOST
  reserved[1] = false;
  copy[1] = NONE
#endif
}

active proctype Fate() {
  if
  :: forgotten
  :: atomic { trouble > 0 -> trouble--; die(); to_sender!LOST,0,connection[0] }
  :: atomic { trouble > 0 -> trouble--; die() }
  fi
}

/* At rest nothing is held. */
#define ENDED(a) (ended[a] || dead[HOST(a)])
#define THEIRS_OR_NOBODYS(a, target) \
  (dead[HOST(a)] || STRAY(a) || !used[a] || (target[0] == THEIRS && target[1] == THEIRS))
active proctype Rest() {
  atomic { forgotten && ENDED(0) && ENDED(1) && empty(to_sender) && empty(to_receiver0) && empty(to_receiver1) ->
    MUST(LEAKED, broken_LEAKED, readers == 0 && owners == 0 && !reserved[0] && !reserved[1]);
    MUST(WRITTEN, broken_WRITTEN, THEIRS_OR_NOBODYS(0, target0) && THEIRS_OR_NOBODYS(1, target1)) }
}
