package service

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/service/doctor"
	"github.com/queuectl/queuectl/store"
)

// Examine checks the files of a service that is not running. The parameter start is the command that starts
// the service, and begin is the command that creates its queue.
func Examine(p config.Places, start, begin string, verify bool) (control.Diagnosis, error) {
	if _, err := os.Stat(p.State); errors.Is(err, fs.ErrNotExist) {
		return doctor.Diagnose([]store.Finding{{Check: "service", Level: store.LevelWarning,
			Message: "there is no queue in " + p.State + " yet", Next: "create it with: " + begin}}), nil
	}
	lock, err := lockForReading(p.State)
	if err != nil {
		return control.Diagnosis{}, err
	}
	defer lock.Close()
	list := []store.Finding{{Check: "service", Level: store.LevelWarning,
		Message: "the service is not running, so only its files were checked", Next: "start it with: " + start}}
	switch location, err := locationIn(p); {
	case err != nil:
		list = append(list, store.Finding{Check: "settings", Level: store.LevelFailure, Message: err.Error(),
			Next: "queuectl config validate"})
	case location.URL == "":
		list = append(list, examineEngine(p.State, outputsOf(p), verify)...)
	case verify:
		return control.Diagnosis{}, doctor.ErrNoFiles
	default:
		list = append(append(list, examineServer(context.Background(), location.URL)...), examineStoreDir(p.State)...)
	}
	return doctor.Diagnose(append(list, doctor.ExaminePlaces(p, 0o777)...)), nil
}

// outputsOf returns the output directories of a service that is not running. These are the service's own
// directories, and those of root's runners if there are any.
func outputsOf(p config.Places) store.OutputDirs {
	list := runner.Location{Dir: cluster.RunnersDir(p)}.OutputDirs()
	if roots := rootRunnersDir(p); roots != "" {
		list = append(list, runner.Location{Dir: roots}.OutputDirs()...)
	}
	return store.OutputDirs{Dirs: list, OwnedSince: cluster.OutputsSince(p.State)}
}
