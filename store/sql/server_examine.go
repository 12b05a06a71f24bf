package sql

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
)

// Examine implements store.Examiner.
func (s *Server) Examine(ctx context.Context) (list []store.Finding) {
	err := s.reading(ctx, func(r *reader) (err error) {
		list, err = examineServer(r, s.config.Database, oldTransaction)
		return err
	})
	if err != nil {
		return []store.Finding{serverFailure(err)}
	}
	return list
}

// ExamineServer checks the database of a URL. A service may be using it.
func ExamineServer(ctx context.Context, url string) []store.Finding {
	config, err := readAddress(url)
	if err != nil {
		return []store.Finding{serverFailure(err)}
	}
	ctx, cancel := context.WithTimeout(ctx, connectTimeout)
	defer cancel()
	c, err := connectServer(ctx, config)
	if err != nil {
		return []store.Finding{serverFailure(err)}
	}
	defer c.close()
	c.ctx = ctx
	foreign, err := findForeign(c)
	if err == nil && foreign != nil {
		return []store.Finding{foreignFinding(foreign)}
	}
	if err != nil {
		return []store.Finding{serverFailure(err)}
	}
	version, err := schemaVersion(c, serverScript(0, migrations, serverMigrations))
	if err == nil && version == 0 {
		return []store.Finding{{Check: "database", Level: store.LevelOK, Message: "the database " + config.Database +
			" has no queue yet; the first start of the service creates it"}}
	}
	var list []store.Finding
	if err == nil {
		_, err = checkServerSchema(c, version, migrations, serverMigrations)
	}
	if errors.Is(err, store.ErrNewerSchema) {
		message := strings.TrimSuffix(err.Error(), "; "+afterOtherSchema)
		return []store.Finding{{Check: "database", Level: store.LevelFailure, Message: message, Next: afterOtherSchema}}
	}
	if err == nil {
		list, err = examineServer(c, config.Database, oldTransaction)
	}
	if err != nil {
		return []store.Finding{serverFailure(err)}
	}
	return list
}

// serverFailure returns the finding for a server that does not answer.
func serverFailure(err error) store.Finding {
	return store.Finding{Check: "database", Level: store.LevelFailure, Message: err.Error(),
		Next: `check the database server and the setting "store"`}
}

// foreignFinding reports an object that belongs to a role the service does not trust.
func foreignFinding(f *foreignObject) store.Finding {
	return store.Finding{Check: "database", Level: store.LevelFailure, Message: f.message(), Next: f.next()}
}

// oldTransaction is the age at which an open transaction is reported.
const oldTransaction = 5 * time.Minute

// examineServer checks a database that contains a queue.
func examineServer(c interface {
	query(each func(r row) (more bool, err error), sql string, args ...any) error
}, name string, old time.Duration) (list []store.Finding, err error) {
	version, fsync, commits, full := "", "", "", ""
	standbys, async, unseen, refused, size := int64(0), int64(0), int64(0), int64(0), int64(0)
	began := time.Now()
	err = c.query(func(r row) (bool, error) {
		version, fsync, commits, full, standbys, async, unseen, refused, size = r.text(0), r.text(1), r.text(2), r.text(3),
			r.num(4), r.num(5), r.num(6), r.num(7), r.num(8)
		return false, nil
	}, `SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit'), current_setting('full_page_writes'),
		(SELECT count(*) FROM pg_stat_replication), (SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'async'),
		(SELECT count(*) FROM pg_stat_replication WHERE sync_state IS NULL),
		(SELECT count(*) FROM submissions WHERE refused IS NOT NULL), pg_database_size(current_database())`)
	if err != nil {
		return nil, err
	}
	foreign, err := findForeign(c)
	if err != nil {
		return nil, err
	}
	if foreign != nil { // checkOwners allowed the start, so the owner was changed later
		list = append(list, foreignFinding(foreign))
	}
	holder, pid, held := "", int64(0), int64(0)
	err = c.query(func(r row) (bool, error) {
		holder, pid, held = r.text(0), r.num(1), r.num(2)
		return false, nil
	}, `SELECT usename, pid, extract(epoch FROM clock_timestamp() - xact_start)::bigint FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid() AND xact_start < clock_timestamp() - ? * interval '1 ms' ORDER BY xact_start LIMIT 1`, old.Milliseconds())
	if err != nil {
		return nil, err
	}
	add := func(level store.Level, message, next string) {
		list = append(list, store.Finding{Check: "database", Level: level, Message: message, Next: next})
	}
	add(store.LevelOK, fmt.Sprintf("PostgreSQL %s, database %s, %s; answers in %v", version, name,
		queue.FormatSize(size>>20<<20), time.Since(began).Round(100*time.Microsecond)), "")
	if fsync != "on" || full != "on" || commits == "off" {
		add(store.LevelFailure, fmt.Sprintf("a crash of the database server can lose acknowledged jobs: fsync = %s, "+
			"full_page_writes = %s, synchronous_commit = %s", fsync, full, commits),
			`set all three to "on", and restart the server`)
	}
	if async > 0 {
		add(store.LevelWarning, fmt.Sprintf("%d of %d standbys are asynchronous; promoting one can lose acknowledged jobs",
			async, standbys), "list these standbys in synchronous_standby_names, or never promote them")
	}
	if unseen > 0 { // only privileged roles see these columns of other processes
		add(store.LevelWarning, fmt.Sprintf("the server has %d standbys, but the role of the service may not see which "+
			"standbys are asynchronous; promoting an asynchronous standby can lose acknowledged jobs", unseen),
			"grant pg_read_all_stats to the role of the service")
	}
	if pid != 0 {
		add(store.LevelWarning, fmt.Sprintf("the role %s has had a transaction open for %v (pid %d), so the server cannot "+
			"reuse the space of removed rows, and the queue gets slower", holder, time.Duration(held)*time.Second, pid),
			fmt.Sprintf("end that transaction, or run: SELECT pg_terminate_backend(%d)", pid))
	}
	if refused > 0 {
		add(store.LevelWarning, fmt.Sprintf("%d jobs enqueued with the SQL function queuectl.enqueue were refused", refused),
			"see why: SELECT role, id, refused FROM queuectl.submissions WHERE refused IS NOT NULL; then DELETE these rows")
	}
	return list, nil
}
