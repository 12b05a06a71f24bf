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

// Config contains what an engine needs. SharedDatabase is nil if only this process uses the database. If Clock is nil,
// the engine uses the system clock. If Log is nil, the engine logs nothing.
type Config struct {
	Backend        Backend
	DiskSpace      DiskSpace
	SharedDatabase SharedDatabase
	Clock          func() queue.UnixMillis
	RankOrder      queue.RankPolicy
	Log            *slog.Logger
}

// New returns an engine that is not open. To open it, the backend calls LoadCache, AllowWrites and Start or, for a
// read-only engine, LoadReadOnly and AllowWrites.
func New(c Config) *Engine {
	e := &Engine{
		backend: c.Backend, diskSpace: c.DiskSpace, sharedDatabase: c.SharedDatabase, clock: c.Clock,
		log:            cmp.Or(c.Log, slog.New(slog.DiscardHandler)),
		thresholds:     thresholds{maxEmptyLanes: 1000, minJobsForPrefetch: minJobsForClaimPrefetch},
		writerToken:    make(chan struct{}, 1),
		failedSignal:   make(chan struct{}),
		dueChangeHints: make(chan struct{}, 1),
	}
	if e.clock == nil {
		e.clock = func() queue.UnixMillis { return queue.UnixMillisOf(time.Now()) }
	}
	e.JobReader = reads.New(c.Backend, func() queue.UnixMillis { return e.clock() }, ErrClosed)
	var seed [32]byte
	crand.Read(seed[:]) // crypto/rand.Read never returns an error
	e.rng = rand.New(rand.NewChaCha8(seed))
	e.UpdatePublishedState(func(state *reads.ReaderState) { state.RankOrder = c.RankOrder })
	return e
}

// AllowWrites lets the engine execute operations. The backend calls it once, after it has loaded the engine.
func (e *Engine) AllowWrites() { e.writerToken <- struct{}{} }

// Start prepares a loaded engine for work: it sets the order of jobs, checks which jobs can start, continues an
// interrupted computation of ranks, and finishes or discards the batches of the last service. The order is computed by
// rankOrderFromSettings from the stored settings, or is the given one if rankOrderFromSettings is nil. If ctx ends,
// Start returns an error; a later Start continues the work.
func (e *Engine) Start(ctx context.Context, rankOrder queue.RankPolicy,
	rankOrderFromSettings func([]store.Setting) (queue.RankPolicy, error)) error {
	e.cache.order = rankOrder
	if rankOrderFromSettings != nil {
		settings, err := e.Settings(ctx)
		if err == nil {
			e.cache.order, err = rankOrderFromSettings(settings)
		}
		if err != nil {
			return err
		}
	}
	e.UpdatePublishedState(func(state *reads.ReaderState) { state.RankOrder = e.cache.order })
	if err := e.recomputeLanesAtStart(ctx); err != nil {
		return err
	}
	if err := e.resumeReranking(ctx); err != nil {
		return err
	}
	return e.finishStoredBatches(ctx)
}

// LoadCache fills the engine's cache for the first time. databaseID is the identifier of the database. If the
// identifier that is stored in the database differs from it, the database is a copy or was moved.
func (e *Engine) LoadCache(conn database.Conn, databaseID string) error {
	e.writerConn, e.databaseID = conn, databaseID
	if err := e.loadCacheFirstTime(); err != nil {
		return err
	}
	old, err := database.ReadNote(e.writerConn, database.NoteKeyDatabaseID)
	e.isDatabaseCopy = old != "" && old != databaseID
	return err
}

// LoadReadOnly does the work of LoadCache for a store that refuses all changes. If rankOrderFromSettings is not nil, it
// computes the order of jobs from the stored settings.
func (e *Engine) LoadReadOnly(conn database.Conn, rankOrderFromSettings func([]store.Setting) (queue.RankPolicy,
	error)) error {
	e.writerConn, e.writesStopped, e.readOnly = conn, true, true
	if err := e.loadCacheFirstTime(); err != nil || rankOrderFromSettings == nil {
		return err
	}
	settings, err := readSettings(conn)
	if err != nil {
		return err
	}
	order, err := rankOrderFromSettings(settings)
	e.UpdatePublishedState(func(state *reads.ReaderState) { state.RankOrder = order })
	return err
}

func (e *Engine) loadCacheFirstTime() error {
	if err := e.loadMemory(); err != nil {
		return err
	}
	if err := e.runtimeEstimates.LoadFromDatabase(e.writerConn); err != nil {
		return err
	}
	e.UpdatePublishedState(func(state *reads.ReaderState) {
		e.cache.publishCounts(state)
		e.cache.publishUsers(state)
	})
	return nil
}

// loadMemory reads the engine's cache from the tables, in two batches of queries.
func (e *Engine) loadMemory() error {
	e.cache = databaseCache{unstoredNodeState: e.cache.unstoredNodeState, leases: map[int64]*rules.Lease{},
		gates: gates.CachedState{UsedUnitsByGate: map[int64]int{}}, users: map[int]userCounts{}, ownerNames: map[int]string{},
		batches: map[int64]batch{}, lanes: lanes.New()}
	m := &e.cache
	var queries database.QueryBatch
	notes := map[string]string{}
	queries.AddForEachRow(func(r database.Row) { notes[r.Text(0)] = r.Text(1) },
		`SELECT key, value FROM notes WHERE key IN (?, ?)`, database.NoteKeyMovedTo, database.NoteKeyMoveSource)
	reserved := ""
	m.addMetaQuery(&queries, &reserved)
	leased := func(r database.Row) {
		var j rules.Job
		records.ReadRulesJob(r, records.ShortJobColumns, &j)
		m.leases[j.Seq] = &rules.Lease{Job: j, AttemptStarted: j.Slot == rules.SlotRunning}
	}
	queries.AddForEachRow(leased, `SELECT `+records.ShortJobColumns+` FROM jobs INDEXED BY jobs_running WHERE place = 3`)
	e.backend.AddReservationQuery(&queries, func(r database.Row) { reserved += r.Text(0) })
	m.addUserQueries(&queries)
	m.addQueueQueries(&queries)
	m.addOwnerQueries(&queries)
	m.dependencies.AddReadQueries(&queries)
	m.gates.AddReadQueries(&queries)
	m.addBatchQueries(&queries)
	addPlainLanes := m.addLaneQueries(&queries)
	if err := e.writerConn.QueryAll(queries.Queries); err != nil {
		return err
	}
	if err := checkQueueNotMoved(notes[database.NoteKeyMovedTo], notes[database.NoteKeyMoveSource]); err != nil {
		return err
	}
	if m.NextJobSeq < 1 || m.NextEventNumber < 1 {
		return fmt.Errorf("the database has lost its counters: %w",
			database.DamageError(`the row of the table "meta" is damaged`))
	}
	if err := cmp.Or(e.loadReservedLeases(reserved, leased), m.loadUserCounts(), m.loadQueueCounts()); err != nil {
		return err
	}
	addPlainLanes()
	for _, b := range m.batches {
		m.addBatchToTotals(&b, 1)
	}
	return nil
}

// addMetaQuery adds the query that reads the row of the table meta. When the query is executed, it appends the
// list of reserved leases (of attempts not known to have started) to *reservedLeasesText.
func (m *databaseCache) addMetaQuery(queries *database.QueryBatch, reservedLeasesText *string) {
	queries.AddForEachRow(func(r database.Row) {
		m.NextJobSeq, m.EnqueuedTotal, m.NextEventNumber = r.Int64(0), r.Int64(1), r.Int64(2)
		for i, state := range queue.States() {
			m.JobCountByState[state] = r.Int64(3 + i)
		}
		*reservedLeasesText += r.Text(11)
		m.metaListsReservedLeases = r.Text(11) != ""
		m.OutputBytes, m.storedRanksOrderText, m.metaUsersText = r.Int64(12), r.Text(13), r.Text(14)
		m.commitCount, m.metaQueuesText, m.order = r.Int64(15), r.Text(16), parseRankOrder(r.Text(19))
		upTo := &m.statistics.RolledUpUntilByGrain
		upTo[store.PerHour], upTo[store.PerDay] = queue.UnixMillis(r.Int64(17)), queue.UnixMillis(r.Int64(18))
	}, `SELECT next_seq, enqueued, next_event, blocked, held, pending, failed, processing, completed, dead, cancelled,
		reserved, output_bytes, ranked_by, users, commits, queues, hours_upto, days_upto, ordered_by FROM meta`)
}

// loadReservedLeases adds the leases in a list of reserved leases, whose attempts are not known to have started. It
// reads the jobs of these leases, passes their rows to addLease, and then sets the fences and nodes of the
// leases.
func (e *Engine) loadReservedLeases(reservedLeasesText string, addLease func(database.Row)) error {
	reservations, err := database.ParseLeaseReservations(reservedLeasesText)
	if err != nil || len(reservations) == 0 {
		return err
	}
	if err := database.ForEachRow(e.writerConn, addLease, `SELECT `+records.ShortJobColumns+` FROM jobs WHERE `+
		e.writerConn.ColumnInNumbersSQL("seq"),
		database.JoinNumbers(maps.Keys(reservations))); err != nil {
		return err
	}
	for seq, r := range reservations {
		if l := e.cache.leases[seq]; l != nil { // without the job's row there is no lease
			l.Job.Fence, l.Job.LastLeasingNodeID = r.Fence, r.NodeID
		}
	}
	return nil
}
