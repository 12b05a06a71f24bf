package cluster

import (
	"errors"
	"os"
	"path/filepath"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/store"
)

// OutputFiles finds the output files of attempts on this node.
type OutputFiles struct {
	Home   runner.Location
	Places config.Places
}

// RunnersDir returns the directory of the service's own runners.
func RunnersDir(p config.Places) string { return filepath.Join(p.State, "runner") }

// OpenOutput opens an attempt's output file. If root's runners are used, OpenOutput also searches the
// service's own directory, since restored files are there.
func (o *OutputFiles) OpenOutput(ref string) (*os.File, error) {
	f, err := o.Home.OpenOutput(ref)
	if errors.Is(err, os.ErrNotExist) && o.Home.Socket != "" {
		f, err = runner.Location{Dir: RunnersDir(o.Places)}.OpenOutput(ref)
	}
	return f, err
}

// Outputs returns the directories with the output files of this queue.
func (o *OutputFiles) Outputs() store.OutputDirs {
	list := runner.Location{Dir: RunnersDir(o.Places)}.OutputDirs()
	if o.Home.Socket != "" {
		list = append(list, o.Home.OutputDirs()...)
	}
	return store.OutputDirs{Dirs: list, Since: OutputsSince(o.Places.State)}
}
