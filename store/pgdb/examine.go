package pgdb

import (
	"context"
	"errors"
	"fmt"
	"strconv"
	"strings"
	"time"

	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/store"
	"github.com/queuectl/queuectl/store/database"
)

// ExamineDatabase makes the checks of "queuectl doctor" for the database at a URL. A service may be using the
// database.
func ExamineDatabase(ctx context.Context, url string) []store.Finding {
	return FindingsOrServerFailure(examineDatabase(ctx, url))
}

func examineDatabase(ctx context.Context, url string) (findings []store.Finding, err error) {
	config, err := ParseDatabaseURL(url)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithTimeout(ctx, ConnectTimeout)
	defer cancel()
	c, err := Connect(ctx, config)
	if err != nil {
		return nil, err
	}
	defer c.Close()
	c.callCtx = ctx
	if foreign, err := findUntrustedObject(c); err != nil {
		return nil, err
	} else if foreign != nil {
		return []store.Finding{untrustedObjectFinding(foreign)}, nil
	}
	version, err := CheckTables(c)
	switch {
	case errors.Is(err, store.ErrNewerSchema):
		message := strings.TrimSuffix(err.Error(), "; "+SchemaMismatchAdvice)
		return []store.Finding{store.Failure("database", message, SchemaMismatchAdvice)}, nil
	case err != nil:
		return nil, err
	case version == 0:
		return []store.Finding{{CheckName: "database", Level: store.LevelOK, Message: "the database " +
			strconv.Quote(config.Database) + " has no queue yet; the first start of the service creates it"}}, nil
	}
	return ExamineQueueDatabase(c, config.Database, MinReportedTransactionAge)
}

// FindingsOrServerFailure returns the findings or, if err is not nil, only a finding that the server cannot be used.
func FindingsOrServerFailure(findings []store.Finding, err error) []store.Finding {
	if err != nil {
		return []store.Finding{store.Failure("database", err.Error(), `check the database server and the setting "store"`)}
	}
	return findings
}

// untrustedObjectFinding returns the finding for an object of the schema whose owner the service does not
// trust.
func untrustedObjectFinding(object *untrustedObject) store.Finding {
	return store.Failure("database", object.message(), object.advice())
}

// MinReportedTransactionAge is the age from which "queuectl doctor" reports an open transaction.
const MinReportedTransactionAge = 5 * time.Minute

// ExamineQueueDatabase checks a database that contains a queue. It reports transactions that have been open for at
// least minTransactionAge.
func ExamineQueueDatabase(c database.Querier, databaseName string,
	minTransactionAge time.Duration) (findings []store.Finding, err error) {
	var version, fsync, commits, full string
	var standbys, async, unseen, refused, size int64
	began := time.Now()
	_, err = database.ScanFirstRow(c, []any{&version, &fsync, &commits, &full, &standbys, &async, &unseen, &refused,
		&size},
		`SELECT current_setting('server_version'), current_setting('fsync'), current_setting('synchronous_commit'),
			current_setting('full_page_writes'),
		(SELECT count(*) FROM pg_stat_replication), (SELECT count(*) FROM pg_stat_replication WHERE sync_state = 'async'),
		(SELECT count(*) FROM pg_stat_replication WHERE sync_state IS NULL),
		(SELECT count(*) FROM submissions WHERE refused IS NOT NULL), pg_database_size(current_database())`)
	if err != nil {
		return nil, err
	}
	foreign, err := findUntrustedObject(c)
	if err != nil {
		return nil, err
	}
	if foreign != nil { // CheckObjectOwners found no such object when the service started, so the owner was changed later
		findings = append(findings, untrustedObjectFinding(foreign))
	}
	holder, pid, held := "", int64(0), int64(0)
	_, err = database.ScanFirstRow(c, []any{&holder, &pid, &held},
		`SELECT usename, pid, extract(epoch FROM clock_timestamp() - xact_start)::bigint FROM pg_stat_activity
			WHERE datname = current_database() AND pid <> pg_backend_pid()
				AND xact_start < clock_timestamp() - ? * interval '1 ms' ORDER BY xact_start LIMIT 1`,
		minTransactionAge.Milliseconds())
	if err != nil {
		return nil, err
	}
	add := func(level store.FindingLevel, message, advice string) {
		findings = append(findings, store.Finding{CheckName: "database", Level: level, Message: message, Advice: advice})
	}
	add(store.LevelOK, fmt.Sprintf("PostgreSQL %s, database %s, %s; answers in %v", version, databaseName,
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
	if unseen > 0 { // only privileged roles can see which standbys are asynchronous
		add(store.LevelWarning, fmt.Sprintf("the server has %d standbys, but the role of the service has no right to see "+
			"which of them are asynchronous; promoting an asynchronous standby can lose acknowledged jobs", unseen),
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
	return findings, nil
}
