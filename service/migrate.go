package service

import (
	"context"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/statedir"
	"github.com/queuectl/queuectl/queue"
)

// Migrate moves a queue whose service is not running to another store, and reports both stores. Jobs that are
// running continue, and the next service takes them over. The stores (from, to) have the format of the setting
// "store"; "" means the store in the settings. Migrate reports its progress to the callback: the name of a table
// and the number of its copied rows.
func Migrate(ctx context.Context, o Options, from, to string, each func(table string, rows int64)) (done MigrateResult,
	err error) {
	b, err := readStartup(o)
	if err != nil {
		return done, &ExitError{ExitConfig, err}
	}
	current, err := b.parseStoreLocation(from, "from")
	if err != nil {
		return done, err
	}
	target, err := b.parseStoreLocation(to, "to")
	if err != nil {
		return done, err
	}
	if err := statedir.Create(o.Paths.StateDir); err != nil {
		return done, err
	}
	lock, err := lockDir(o.Paths.StateDir)
	if err != nil {
		return done, err
	}
	defer lock.Close()
	node, err := b.loadNodeIdentity()
	if err != nil {
		return done, err
	}
	moved, err := moveQueue(ctx, current, target, storeMember{Name: node.Name, DirID: node.DirID}, each)
	return MigrateResult{moved, current.String(), target.String()}, err
}

// parseStoreLocation returns the location of a store. store "" means the store in the settings. field is the name of
// the parameter, for error messages.
func (st *startup) parseStoreLocation(store, field string) (p storeLocation, err error) {
	p.Dir = st.options.Paths.StateDir
	if store == "" {
		p.URL, err = st.settings.Current().StoreURL()
	} else if store != config.StoreSQLite {
		k, _, _ := config.FindKey("store", "")
		if err = k.Check(store); err != nil {
			err = queue.Invalid(field, "must be sqlite or a URL such as postgres://USER@HOST/DATABASE")
		}
		p.URL = store
	}
	if p.URL != "" {
		p.Dir = ""
	}
	return p, err
}

// locationFromSettings returns the location that the settings name for a queue whose service is not running.
func locationFromSettings(p config.Paths) (storeLocation, error) {
	b, err := readStartup(Options{Paths: p})
	if err != nil {
		return storeLocation{}, &ExitError{ExitConfig, err}
	}
	return b.parseStoreLocation("", "store")
}
