package service

import (
	"context"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/internal/statedir"
	"github.com/queuectl/queuectl/queue"
)

// MigrateQueue moves a queue whose service is not running from one store to another. The result names both stores.
// Running jobs continue, and the next service takes them over. sourceStore and targetStore have the format of
// the setting "store"; "" means the store in the settings. MigrateQueue reports its progress by calling
// reportCopiedRows with the name of a table and the number of rows that it has copied.
func MigrateQueue(
	ctx context.Context, o Options, sourceStore, targetStore string, reportCopiedRows func(table string, rows int64),
) (result MigrateResult, err error) {
	b, err := readStartupSettings(o)
	if err != nil {
		return result, &ExitError{ExitCodeConfig, err}
	}
	current, err := b.parseStoreLocation(sourceStore, "from")
	if err != nil {
		return result, err
	}
	target, err := b.parseStoreLocation(targetStore, "to")
	if err != nil {
		return result, err
	}
	if err := statedir.Create(o.Paths.StateDir); err != nil {
		return result, err
	}
	lock, err := lockStateDir(o.Paths.StateDir)
	if err != nil {
		return result, err
	}
	defer lock.Close()
	node, err := b.loadNodeIdentity()
	if err != nil {
		return result, err
	}
	moved, err := moveQueue(ctx, current, target, migrationNode{NodeName: node.NodeName, StateDirID: node.StateDirID},
		reportCopiedRows)
	return MigrateResult{moved, current.String(), target.String()}, err
}

// parseStoreLocation returns the location of a store. storeText has the format of the setting "store"; "" means the
// store in the settings. paramName is the name of the parameter, for error messages.
func (st *startup) parseStoreLocation(storeText, paramName string) (location storeLocation, err error) {
	location.Dir = st.Paths.StateDir
	if storeText == "" {
		location.URL, err = st.Settings.CurrentConfig().StoreURL()
	} else if storeText != config.StoreSQLite {
		k, _, _ := config.FindSetting("store", "")
		if err = k.CheckValue(storeText); err != nil {
			err = queue.InvalidFieldError(paramName, "must be sqlite or a URL such as postgres://USER@HOST/DATABASE")
		}
		location.URL = storeText
	}
	if location.URL != "" {
		location.Dir = ""
	}
	return location, err
}

// locationFromSettings returns the location that the settings name for a queue whose service is not running.
func locationFromSettings(p config.Paths) (storeLocation, error) {
	b, err := readStartupSettings(Options{Paths: p})
	if err != nil {
		return storeLocation{}, &ExitError{ExitCodeConfig, err}
	}
	return b.parseStoreLocation("", "store")
}
