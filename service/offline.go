package service

import (
	"context"
	"errors"
	"io/fs"
	"os"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/accounts"
	"github.com/queuectl/queuectl/internal/statedir"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/service/cluster"
	"github.com/queuectl/queuectl/service/doctor"
	"github.com/queuectl/queuectl/service/handlers"
	"github.com/queuectl/queuectl/store"
)

// OpenOffline returns a client that reads the files of a queue whose service is not running. The client can
// call only methods that change nothing. OpenOffline returns an error if other accounts can change the
// directory, and fs.ErrNotExist if there is no queue. See docs/decisions/0068.
func OpenOffline(ctx context.Context, o Options) (*control.Client, error) {
	if err := statedir.CheckUnwritableByOthers(o.Paths.StateDir); err != nil {
		return nil, queue.Errorf(queue.CodeDenied, "%v", err)
	}
	b, err := readStartupSettings(o)
	if err != nil {
		return nil, &ExitError{ExitCodeConfig, err}
	}
	b.ReadOnly = true
	if err := b.openStore(ctx); err != nil {
		return nil, err
	}
	// The location of the runners is needed to find output files. The worker pool runs no jobs in read-only mode, but some
	// methods read its state.
	runners := runner.RunnersLocation{RunnersDir: cluster.RunnersDir(o.Paths)}
	s := newService(b, runners, b.UserDirectory.AccountByUID(accounts.CurrentUserID()), nil)
	if err := errors.Join(s.Owners.LoadOwnerNames(ctx), s.QueueRules.LoadQueueRules(ctx)); err != nil {
		return nil, err
	}
	api := handlers.New(s.Dependencies, handlers.FrontEndParts{})
	return s.newControlServer(api).InProcessClientAs(control.Peer{UID: accounts.CurrentUserID(), GID: -1,
		PID: os.Getpid()}), nil
}

// ExamineStoppedService runs the checks of doctor on the files of a service that is not running. If thorough is true,
// it also runs the thorough checks, which take long. The advice in its findings contains two commands: startCommand
// starts the service, and createCommand creates its queue.
func ExamineStoppedService(p config.Paths, startCommand, createCommand string, thorough bool) (
	result control.Diagnosis, err error) {
	if _, err := os.Stat(p.StateDir); errors.Is(err, fs.ErrNotExist) {
		return doctor.SummarizeFindings([]store.Finding{doctor.Warning("service",
			"there is no queue in "+p.StateDir+" yet", "create it with: "+createCommand)}), nil
	}
	lock, err := lockStateDirForReading(p.StateDir)
	if err != nil {
		return result, err
	}
	defer lock.Close()
	list := []store.Finding{doctor.Warning("service",
		"the service is not running, so only its files were checked", "start it with: "+startCommand)}
	switch location, err := locationFromSettings(p); {
	case err != nil:
		list = append(list, doctor.Failure("settings", err.Error(), "queuectl config validate"))
	case location.URL == "":
		list = append(list, examineStoppedStore(p.StateDir, outputDirsOf(p), thorough)...)
	case thorough:
		return result, doctor.ErrStoreHasNoFiles
	default:
		list = append(append(list, examineDatabaseServer(context.Background(), location.URL)...),
			examineStateDir(p.StateDir)...)
	}
	return doctor.SummarizeFindings(append(list, doctor.ExaminePathPermissions(p, 0o777)...)), nil
}

// outputDirsOf returns the output directories of a service that is not running. They include the directories of
// the runners that run as root, if any exist.
func outputDirsOf(p config.Paths) store.OutputDirs {
	dirs := store.OutputDirs{DirsUsedSince: cluster.StateDirFirstUsedAt(p.StateDir)}
	for _, h := range runnerLocations(p, "") {
		dirs.Dirs = append(dirs.Dirs, h.OutputDirs()...)
	}
	return dirs
}
