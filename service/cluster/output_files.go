package cluster

import (
	"errors"
	"io"
	"os"
	"path/filepath"

	"github.com/queuectl/queuectl/config"
	"github.com/queuectl/queuectl/queue"
	"github.com/queuectl/queuectl/runner"
	"github.com/queuectl/queuectl/store"
)

// OutputFiles finds the output files of attempts on this node.
type OutputFiles struct {
	RunnerLocation runner.RunnersLocation
	Paths          config.Paths
}

// RunnersDir returns the directory of runners that run as the service's own account.
func RunnersDir(p config.Paths) string { return filepath.Join(p.StateDir, "runner") }

// OpenOutputFile opens an attempt's output file. If runners run as root, the file is normally in their directory. If
// the file was restored from a backup, it is in the directory of the runners that the service starts itself.
// OpenOutputFile searches both.
func (o *OutputFiles) OpenOutputFile(fileName string) (*os.File, error) {
	f, err := o.RunnerLocation.OpenOutput(fileName)
	if errors.Is(err, os.ErrNotExist) && o.RunnerLocation.SpawnSocketPath != "" {
		f, err = runner.RunnersLocation{RunnersDir: RunnersDir(o.Paths)}.OpenOutput(fileName)
	}
	return f, err
}

// readOutputPiece reads a piece of an output file. If this node does not have the file, it returns a not-found error.
func (o *OutputFiles) readOutputPiece(p outputReadRequest) (piece *outputPiece, err error) {
	f, err := o.OpenOutputFile(p.FileName)
	if errors.Is(err, os.ErrNotExist) {
		err = queue.Errorf(queue.CodeNotFound, "%v", err)
	}
	if err != nil {
		return piece, err
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return piece, err
	}
	piece = &outputPiece{Data: make([]byte, maxOutputPieceBytes), FileSize: info.Size()}
	n, err := f.ReadAt(piece.Data, p.FileOffset)
	if errors.Is(err, io.EOF) {
		err = nil
	}
	piece.Data = piece.Data[:n]
	return piece, err
}

// OutputDirs returns the directories with the output files of this queue.
func (o *OutputFiles) OutputDirs() store.OutputDirs {
	list := runner.RunnersLocation{RunnersDir: RunnersDir(o.Paths)}.OutputDirs()
	if o.RunnerLocation.SpawnSocketPath != "" {
		list = append(list, o.RunnerLocation.OutputDirs()...)
	}
	return store.OutputDirs{Dirs: list, DirsUsedSince: StateDirFirstUsedAt(o.Paths.StateDir)}
}
