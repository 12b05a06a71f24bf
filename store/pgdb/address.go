package pgdb

import (
	"context"
	"errors"
	"fmt"
	"maps"
	neturl "net/url"
	"slices"
	"strings"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/queuectl/queuectl/queue"
)

// ConnConfig holds the parameters for connecting to a database.
type ConnConfig struct {
	*pgconn.Config
	sessionSettings map[string]string // PostgreSQL settings that each connection gets, by name
	// UsesPooler is true if the URL leads to a connection pooler in transaction mode. The pooler may use another
	// connection to the server for each transaction, so settings of the session are lost.
	UsesPooler bool
}

// poolModeURLParam is the URL parameter that announces a connection pooler. Its only supported value is
// transactionPoolMode: the pooler assigns a connection to the server to each transaction.
const (
	poolModeURLParam    = "pool_mode"
	transactionPoolMode = "transaction"
)

// WithSessionSetting returns a copy of the parameters in which one session setting has the given value.
func (a *ConnConfig) WithSessionSetting(name, value string) *ConnConfig {
	other := *a
	other.sessionSettings = maps.Clone(a.sessionSettings)
	other.sessionSettings[name] = value
	return &other
}

// Connect opens a connection to a server.
func Connect(ctx context.Context, connConfig *ConnConfig) (*Conn, error) {
	config := connConfig.Config.Copy()
	session := ""
	if connConfig.UsesPooler {
		var settings []string
		for _, name := range slices.Sorted(maps.Keys(connConfig.sessionSettings)) {
			settings = append(settings, "set_config('"+name+"', '"+connConfig.sessionSettings[name]+"', true)")
		}
		session = "SELECT " + strings.Join(settings, ", ")
	} else {
		maps.Copy(config.RuntimeParams, connConfig.sessionSettings)
	}
	pg, err := pgconn.ConnectConfig(ctx, config)
	if err != nil {
		if refused, isServerError := errors.AsType[*pgconn.PgError](err); isServerError &&
			strings.Contains(refused.Message, "unsupported startup parameter") {
			err = fmt.Errorf(
				`%w; if the URL leads to a pooler in transaction mode, add ?%s=%s to the URL in the setting "store"`, err,
				poolModeURLParam,
				transactionPoolMode)
		}
		return nil, ConnLostError{fmt.Errorf("the database cannot be reached: %w", err)}
	}
	return &Conn{pgConn: pg, sessionSettingsSQL: session, callCtx: context.Background(),
		statements: map[string]*preparedStatement{}, unsentRowsByTable: map[string]*preparedStatement{}}, nil
}

// ParseDatabaseURL parses the URL of a database.
func ParseDatabaseURL(url string) (*ConnConfig, error) {
	config, err := pgconn.ParseConfig(url)
	if err != nil {
		if u, isURL := errors.AsType[*neturl.Error](err); isURL {
			err = u.Err // report the cause without the URL, which may contain a password
		}
		return nil, queue.InvalidFieldError("store", "the value is not a URL like postgres://USER@HOST/DATABASE: %v", err)
	}
	mode, pooled := config.RuntimeParams[poolModeURLParam]
	if pooled && mode != transactionPoolMode {
		return nil, queue.InvalidFieldError("store", "the URL has pool_mode=%s; use %s, or leave pool_mode out",
			queue.ClipForMessage(mode), transactionPoolMode)
	}
	delete(config.RuntimeParams, poolModeURLParam)
	config.RuntimeParams["application_name"], config.RuntimeParams["client_encoding"] = "queuectl", "UTF8"
	a := &ConnConfig{Config: config, UsesPooler: pooled, sessionSettings: map[string]string{
		"search_path": SchemaName, "bytea_output": "hex", "plan_cache_mode": "force_generic_plan", "enable_seqscan": "off",
		"jit":                                 "off",
		"idle_in_transaction_session_timeout": "30s", "statement_timeout": "60s", "synchronous_commit": "on",
		// These settings override the defaults of the role and the database.
		"lock_timeout": "0", "default_transaction_isolation": "read committed",
	}}
	if !pooled { // these settings make the server notice an unreachable client soon
		maps.Copy(a.sessionSettings, map[string]string{"tcp_keepalives_idle": "10", "tcp_keepalives_interval": "5",
			"tcp_keepalives_count": "3"})
	}
	return a, nil
}

// SchemaName is the name of the PostgreSQL schema that contains the tables.
const SchemaName = "queuectl"

// ConnectForWriting opens a connection for writes. The server ends a transaction in which the writer is idle for
// a short time, because its locks block all other nodes.
func ConnectForWriting(ctx context.Context, connConfig *ConnConfig) (*Conn, error) {
	ctx, cancel := context.WithTimeout(ctx, ConnectTimeout)
	defer cancel()
	return Connect(ctx, connConfig.WithSessionSetting("idle_in_transaction_session_timeout", writerIdleTimeout))
}
