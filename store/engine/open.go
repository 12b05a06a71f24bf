package engine

import (
	"cmp"
	"context"
	crand "crypto/rand"
	"fmt"
	"log/slog"
	"maps"
	"math/rand/v2"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
	"github.com/queuectl/queuectl/store/gates"
	"github.com/queuectl/queuectl/store/lanes"
	"github.com/queuectl/queuectl/store/reads"
	"github.com/queuectl/queuectl/store/records"
	"github.com/queuectl/queuectl/store/rules"
)

// Config contains what an engine needs. Shared is nil if only this process uses the database. If Now is nil,
// the engine uses the system clock. If Log is nil, the engine logs nothing.
type Config struct {
	Backend Backend
	Space   DiskSpace
	Shared  SharedDatabase
	Now     func() queue.Millis
	Order   queue.Order
	Log     *slog.Logger
}

// New returns an engine that is not open. To open it, the backend calls Load, AllowWrites and Start or, for a
// read-only engine, LoadReadOnly and AllowWrites.
func New(c Config) *Engine {
	e := &Engine{
		backend: c.Backend, space: c.Space, shared: c.Shared, now: c.Now,
		log:          cmp.Or(c.Log, slog.New(slog.DiscardHandler)),
		thresholds:   thresholds{maxEmptyLanes: 1000, prefetchThreshold: minClaimPrefetch},
		writerToken:  make(chan struct{}, 1),
		broken:       make(chan struct{}),
		promoteHints: make(chan struct{}, 1),
	}
	if e.now == nil {
		e.now = func() queue.Millis { return queue.MillisOf(time.Now()) }
	}
	e.Reads = reads.New(c.Backend, func() queue.Millis { return e.now() }, ErrClosed)
	var seed [32]byte
	crand.Read(seed[:]) // crypto/rand.Read never returns an error
	e.rng = rand.New(rand.NewChaCha8(seed))
	e.Publish(func(state *reads.State) { state.Order = c.Order })
	return e
}

// AllowWrites lets the engine execute operations. The backend calls it once, after it has loaded the engine.
func (e *Engine) AllowWrites() { e.writerToken <- struct{}{} }

// Start prepares a loaded engine for work: it sets the order of jobs, continues interrupted recomputations,
// and finishes or discards the batches of the last service. The order is computed by readOrder from the
// stored settings, or is the given one if readOrder is nil. If ctx ends, Start returns an error; a later
// Start continues the work.
func (e *Engine) Start(ctx context.Context, order queue.Order,
	readOrder func([]store.Setting) (queue.Order, error)) error {
	e.mem.order = order
	if readOrder != nil {
		settings, err := e.Settings(ctx)
		if err == nil {
			e.mem.order, err = readOrder(settings)
		}
		if err != nil {
			return err
		}
	}
	e.Publish(func(state *reads.State) { state.Order = e.mem.order })
	if err := e.resumeLanes(ctx); err != nil {
		return err
	}
	if err := e.resumeRanking(ctx); err != nil {
		return err
	}
	return e.finishBatches(ctx)
}

// Load fills the engine's cache for the first time. id is the identifier of the database. If the identifier
// that is stored in the database differs from it, the database is a copy or was moved.
func (e *Engine) Load(conn database.Conn, id string) error {
	e.db, e.databaseID = conn, id
	if err := e.load(); err != nil {
		return err
	}
	old, err := database.ReadNote(e.db, database.NoteDatabaseID)
	e.isCopy = old != "" && old != id
	return err
}

// LoadReadOnly does the work of Load for a store that refuses all changes. If readOrder is not nil, it
// computes the order of jobs from the stored settings.
func (e *Engine) LoadReadOnly(conn database.Conn, readOrder func([]store.Setting) (queue.Order, error)) error {
	e.db, e.writesStopped, e.readOnly = conn, true, true
	if err := e.load(); err != nil || readOrder == nil {
		return err
	}
	settings, err := readSettings(conn)
	if err != nil {
		return err
	}
	order, err := readOrder(settings)
	e.Publish(func(state *reads.State) { state.Order = order })
	return err
}

// load fills the whole cache for the first time.
func (e *Engine) load() error {
	if err := e.loadMemory(); err != nil {
		return err
	}
	if err := e.runtimeEstimates.Load(e.db); err != nil {
		return err
	}
	e.Publish(func(state *reads.State) {
		e.publishCounts(state)
		e.publishUsers(state)
	})
	return nil
}

// loadMemory reads the engine's cache from the tables, in two batches of queries.
func (e *Engine) loadMemory() error {
	e.mem = memory{nodeMemory: e.mem.nodeMemory, leases: map[int64]*rules.Lease{},
		gates: gates.State{UsedUnits: map[int64]int{}}, users: map[int]user{}, owners: map[int]string{},
		batches: map[int64]batch{}, lanes: lanes.New()}
	var queries database.QueryBatch
	notes := map[string]string{}
	queries.AddEach(func(r database.Row) { notes[r.Text(0)] = r.Text(1) },
		`SELECT key, value FROM notes WHERE key IN (?, ?)`, database.NoteMoved, database.NoteMoving)
	reserved := ""
	e.readMeta(&queries, &reserved)
	leased := func(r database.Row) {
		j := records.ReadRulesJob(r, records.HeadColumns)
		e.mem.leases[j.Seq] = &rules.Lease{Job: j, Running: j.Slot == rules.Running}
	}
	queries.AddEach(leased, `SELECT `+records.HeadColumns+` FROM jobs INDEXED BY jobs_running WHERE place = 3`)
	e.backend.ReadReservations(&queries, func(r database.Row) { reserved += r.Text(0) })
	e.readUsers(&queries)
	e.readQueues(&queries)
	e.readOwners(&queries)
	e.mem.dependencies.Read(&queries)
	e.mem.gates.Read(&queries)
	e.readBatches(&queries)
	addPlainLanes := e.loadLanes(&queries)
	if err := e.db.QueryAll(queries.Queries); err != nil {
		return err
	}
	if err := checkNotMoved(notes[database.NoteMoved], notes[database.NoteMoving]); err != nil {
		return err
	}
	if e.mem.nextSeq < 1 || e.mem.nextEvent < 1 {
		return fmt.Errorf("the database has lost its counters: %w",
			database.DamageError(`the row of the table "meta" is damaged`))
	}
	if err := cmp.Or(e.loadReserved(reserved, leased), e.loadUserCounts(), e.loadQueueCounts()); err != nil {
		return err
	}
	addPlainLanes()
	for _, b := range e.mem.batches {
		e.mem.addBatchToTotals(&b, 1)
	}
	return nil
}

// readMeta adds the query that reads the row of the table meta. When the query is executed, it appends the
// list of reserved leases (of attempts not known to have started) to *reservedList.
func (e *Engine) readMeta(queries *database.QueryBatch, reservedList *string) {
	queries.AddEach(func(r database.Row) {
		e.mem.nextSeq, e.mem.enqueuedTotal, e.mem.nextEvent = r.Num(0), r.Num(1), r.Num(2)
		for i, state := range queue.States() {
			e.mem.jobCounts[state] = r.Num(3 + i)
		}
		*reservedList += r.Text(11)
		e.mem.reservedInMeta = r.Text(11) != ""
		e.mem.outputBytes, e.mem.rankedByOrder, e.mem.userList = r.Num(12), r.Text(13), r.Text(14)
		e.mem.commits, e.mem.queueList, e.mem.order = r.Num(15), r.Text(16), parseOrder(r.Text(19))
		upTo := &e.mem.statistics.SummedUpTo
		upTo[store.Hour], upTo[store.Day] = queue.Millis(r.Num(17)), queue.Millis(r.Num(18))
	}, `SELECT next_seq, enqueued, next_event, blocked, held, pending, failed, processing, completed, dead, cancelled,
		reserved, output_bytes, ranked_by, users, commits, queues, hours_upto, days_upto, ordered_by FROM meta`)
}

// loadReserved adds the leases in a list of reserved leases, whose attempts are not known to have started. It
// reads the jobs of these leases, passes their rows to addLease, and then sets the fences and nodes of the
// leases.
func (e *Engine) loadReserved(reservedList string, addLease func(database.Row)) error {
	reservations, err := database.ParseReservations(reservedList)
	if err != nil || len(reservations) == 0 {
		return err
	}
	if err := database.EachRow(e.db, addLease, `SELECT `+records.HeadColumns+` FROM jobs WHERE `+e.db.InNumbersSQL("seq"),
		database.JoinNumbers(maps.Keys(reservations))); err != nil {
		return err
	}
	for seq, r := range reservations {
		if l := e.mem.leases[seq]; l != nil { // without the job's row there is no lease
			l.Job.Fence, l.Job.Node = r.Fence, r.Node
		}
	}
	return nil
}
