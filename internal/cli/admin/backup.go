package admin

import (
	"context"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/spf13/cobra"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/internal/atomicfile"
	"github.com/queuectl/queuectl/internal/cli"
	"github.com/queuectl/queuectl/internal/cli/fault"
	"github.com/queuectl/queuectl/internal/cli/files"
	"github.com/queuectl/queuectl/internal/cli/term"
	"github.com/queuectl/queuectl/internal/present"
	"github.com/queuectl/queuectl/queue"
)

// BackupVerb returns the command "queuectl backup".
func BackupVerb(app *cli.App) *cobra.Command {
	a := adminCommands{app}
	var force bool
	cmd := cli.NewCommand("backup FILE", "Back up the whole queue to one file while it is in use",
		cli.ExactArgs(1, "the name of the file to write"), func(ctx context.Context, args []string) error {
			return a.saveBackup(ctx, args[0], force)
		})
	cmd.Flags().BoolVar(&force, "force", false, "overwrite the file even if it is not an earlier backup")
	return cmd
}

// isBackupFile reports whether a file is empty or contains a queue's database, as a backup does. At offset 68, an
// SQLite file contains an application id (sqlite.org/fileformat.html). isBackupFile checks whether this is queuectl's
// id.
func isBackupFile(path string) (bool, error) {
	f, err := os.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	var header [72]byte
	switch n, err := io.ReadFull(f, header[:]); {
	case n == 0 && err == io.EOF:
		return true, nil
	case err != nil && err != io.ErrUnexpectedEOF:
		return false, err
	}
	return string(header[:16]) == "SQLite format 3\x00" &&
		binary.BigEndian.Uint32(header[68:]) == queue.DatabaseApplicationID, nil
}

func (a adminCommands) saveBackup(ctx context.Context, path string, overwrite bool) error {
	if path == "" {
		return fault.Usagef("the file name is empty; give a name, or - for standard output")
	}
	return a.WithClient(func(c *control.Client) error {
		if path == "-" {
			if term.IsTerminal(a.Stdout) {
				return fault.Usagef("a backup is binary data, not text for a terminal; give a file name, or redirect standard " +
					"output")
			}
			_, err := a.receiveBackup(ctx, c, a.Stdout)
			return err
		}
		if real, err := filepath.EvalSymlinks(path); err == nil {
			path = real // replace the target of a symbolic link, and keep the link itself
		}
		if info, err := os.Stat(path); err == nil && !info.Mode().IsRegular() {
			return fault.Usagef(
				"%s is not a regular file, so it cannot be replaced; give another name, or - for standard output",
				path)
		} else if err == nil && !overwrite {
			ours, err := isBackupFile(path)
			if err != nil {
				return files.UnreadableError("backup", path, err)
			}
			if !ours {
				return queue.Errorf(queue.CodeExists, "%s exists and is not a queue backup; give another name, or replace "+
					"the file with --force", path)
			}
		}
		ctx, stop := signal.NotifyContext(ctx, cli.StopSignals...)
		defer stop()
		dir := filepath.Dir(path)
		tmp, err := os.CreateTemp(dir, ".queuectl-backup-") // CreateTemp sets mode 0600
		if err != nil {
			return files.UnwritableError("backup", dir, err)
		}
		defer os.Remove(tmp.Name()) // after the rename, no file has this name, so this call fails, which is harmless
		end, err := a.receiveBackup(ctx, c, tmp)
		if err == nil {
			err = tmp.Sync()
		}
		err = errors.Join(err, tmp.Close())
		if ctx.Err() != nil {
			a.ExitCode = fault.ExitCodeDetached
			a.PrintMessage("backup interrupted; no file was written")
			return nil
		}
		if err == nil {
			err = os.Rename(tmp.Name(), path)
		}
		if err == nil {
			err = atomicfile.SyncDir(dir)
		}
		if err != nil {
			return files.UnwritableError("backup", dir, err)
		}
		return a.PrintResult(end, "backup written to %s (%s)", path, present.SizeText(end.TotalBytes))
	})
}

// receiveBackup writes a backup to out. It returns an error if the written backup does not have the length and the hash
// that the service reports.
func (a adminCommands) receiveBackup(ctx context.Context, c *control.Client, out io.Writer) (control.BackupSummary,
	error) {
	defer a.ShowProgress("")
	began := time.Now()
	sum, bytes := sha256.New(), int64(0)
	end, err := c.StreamBackup(ctx, control.NoParams{}, func(p control.BackupPiece) error {
		note := "copying"
		if len(p.Content) > 0 {
			note = "receiving"
		}
		a.DrawProgressBar(term.ProgressBar{Current: p.CopiedBytes, Total: p.TotalBytes, StartedAt: began,
			TextAfterNumbers: note, ValuesAreBytes: true})
		sum.Write(p.Content)
		bytes += int64(len(p.Content))
		_, err := out.Write(p.Content)
		return err
	})
	if err != nil {
		return end, err
	}
	if bytes != end.TotalBytes || hex.EncodeToString(sum.Sum(nil)) != end.SHA256 {
		return end, fmt.Errorf("the backup was damaged in transit: %d of %d bytes received; run the command again", bytes,
			end.TotalBytes)
	}
	return end, nil
}
