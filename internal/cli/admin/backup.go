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
	a := command{app}
	var force bool
	cmd := &cobra.Command{
		Use: "backup FILE", Short: "Back up the whole queue to one file while it is in use",
		Args: cli.ExactArgs(1, "the name of the file to write"),
		RunE: func(cmd *cobra.Command, args []string) error {
			return a.backup(cmd.Context(), args[0], force)
		},
	}
	cmd.Flags().BoolVar(&force, "force", false, "overwrite the file even if it is not an earlier backup")
	return cmd
}

// isBackup reports whether a file is empty or contains a queue's database, as a backup does. An SQLite file
// contains the application id at offset 68 (sqlite.org/fileformat.html), and isBackup checks that id.
func isBackup(name string) (bool, error) {
	f, err := os.Open(name)
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
	return string(header[:16]) == "SQLite format 3\x00" && binary.BigEndian.Uint32(header[68:]) == queue.DatabaseID, nil
}

func (a command) backup(ctx context.Context, name string, force bool) error {
	if name == "" {
		return fault.Usagef("the file name is empty; give a name, or - for standard output")
	}
	return a.WithClient(func(c *control.Client) error {
		if name == "-" {
			if term.IsTerminal(a.Stdout) {
				return fault.Usagef("a backup is binary data, not text for a terminal; give a file name, or redirect standard " +
					"output")
			}
			_, err := a.receiveBackup(ctx, c, a.Stdout)
			return err
		}
		if real, err := filepath.EvalSymlinks(name); err == nil {
			name = real // replace the target of a symbolic link, and keep the link itself
		}
		if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
			return fault.Usagef(
				"%s is not a regular file, so it cannot be replaced; give another name, or - for standard output",
				name)
		} else if err == nil && !force {
			ours, err := isBackup(name)
			if err != nil {
				return files.UnreadableError("backup", name, err)
			}
			if !ours {
				return queue.Errorf(queue.CodeExists, "%s exists and is not a queue backup; give another name, or replace "+
					"the file with --force", name)
			}
		}
		ctx, stop := signal.NotifyContext(ctx, cli.StopSignals...)
		defer stop()
		dir := filepath.Dir(name)
		tmp, err := os.CreateTemp(dir, ".queuectl-backup-") // CreateTemp sets mode 0600
		if err != nil {
			return files.UnwritableError("backup", dir, err)
		}
		defer os.Remove(tmp.Name()) // after the rename the file has another name, so this call fails, which is harmless
		end, err := a.receiveBackup(ctx, c, tmp)
		if err == nil {
			err = tmp.Sync()
		}
		err = errors.Join(err, tmp.Close())
		if ctx.Err() != nil {
			a.ExitCode = fault.ExitDetached
			a.Say("backup interrupted; no file was written")
			return nil
		}
		if err == nil {
			err = os.Rename(tmp.Name(), name)
		}
		if err == nil {
			err = atomicfile.SyncDir(dir)
		}
		if err != nil {
			return files.UnwritableError("backup", dir, err)
		}
		return a.PrintResult(end, "backup written to %s (%s)", name, present.SizeText(end.Bytes))
	})
}

// receiveBackup writes a backup to a file and verifies its length and hash.
func (a command) receiveBackup(ctx context.Context, c *control.Client, out io.Writer) (control.BackupEnd, error) {
	defer a.ShowProgress("")
	began := time.Now()
	sum, bytes := sha256.New(), int64(0)
	end, err := c.Backup(ctx, control.NoParams{}, func(p control.BackupPiece) error {
		note := "copying"
		if len(p.Base64) > 0 {
			note = "receiving"
		}
		a.DrawBar(term.ProgressBar{Current: p.DoneBytes, Total: p.TotalBytes, StartedAt: began, Suffix: note, InBytes: true})
		sum.Write(p.Base64)
		bytes += int64(len(p.Base64))
		_, err := out.Write(p.Base64)
		return err
	})
	if err != nil {
		return end, err
	}
	if bytes != end.Bytes || hex.EncodeToString(sum.Sum(nil)) != end.SHA256 {
		return end, fmt.Errorf("the backup was damaged in transit: %d of %d bytes received; run the command again", bytes,
			end.Bytes)
	}
	return end, nil
}
