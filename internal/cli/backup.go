package cli

import (
	"context"
	"crypto/sha256"
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
)

func backupVerb(a *App) *cobra.Command {
	return &cobra.Command{
		Use: "backup FILE", Short: "Copy the whole queue, with its outputs, into one file while it runs", Args: Exactly(1, "the file to write"),
		Long: `Copy the whole queue, with its outputs, into one file while it runs.

The file is an SQLite database, readable by you alone. It holds every job that was
acknowledged before; it has been checked, and it is there whole or not at all. - is
standard output.

  queuectl backup /var/backups/queue.db
  queuectl restore /var/backups/queue.db    while the service is stopped`,
		RunE: func(cmd *cobra.Command, args []string) error { return a.backup(cmd.Context(), args[0]) },
	}
}

func (a *App) backup(ctx context.Context, name string) error {
	c, err := a.Client()
	if err != nil {
		return err
	}
	defer c.Close()
	if name == "-" {
		if IsTerminal(a.Out) {
			return Usage("a backup is no text; name a file, or send standard output somewhere")
		}
		_, err := a.receive(ctx, c, a.Out)
		return err
	}
	if real, err := filepath.EvalSymlinks(name); err == nil {
		name = real // a link goes on leading to the newest
	}
	if info, err := os.Stat(name); err == nil && !info.Mode().IsRegular() {
		return Usage("%s is no file, so a backup cannot take its place; name another one, or - for standard output", name)
	}
	ctx, stop := signal.NotifyContext(ctx, StopSignals...)
	defer stop()
	dir := filepath.Dir(name)
	tmp, err := os.CreateTemp(dir, ".queuectl-backup-") // 0600
	if err != nil {
		return Unwritable("backup", dir, err)
	}
	defer os.Remove(tmp.Name()) // once it is renamed, it is not there
	end, err := a.receive(ctx, c, tmp)
	if err == nil {
		err = tmp.Sync()
	}
	err = errors.Join(err, tmp.Close())
	if ctx.Err() != nil {
		a.Exit = exitDetached
		fmt.Fprintln(a.Err, "queuectl: interrupted; nothing was written")
		return nil
	}
	if err == nil {
		err = os.Rename(tmp.Name(), name)
	}
	if err == nil {
		err = syncFolder(dir)
	}
	if err != nil {
		return Unwritable("backup", dir, err)
	}
	return a.Tell(end, "%s written to %s", size(end.Bytes), name)
}

// receive writes a backup as it comes and checks that it came whole.
func (a *App) receive(ctx context.Context, c *control.Client, to io.Writer) (control.BackupEnd, error) {
	defer a.Progress("")
	began := time.Now()
	sum, bytes := sha256.New(), int64(0)
	end, err := c.Backup(ctx, control.Nothing{}, func(p control.BackupPiece) error {
		note := "copying"
		if len(p.Base64) > 0 {
			note = "receiving"
		}
		a.Draw(Bar{Done: p.Done, Of: p.Of, Since: began, Note: note, Bytes: true})
		sum.Write(p.Base64)
		bytes += int64(len(p.Base64))
		_, err := to.Write(p.Base64)
		return err
	})
	if err != nil {
		return end, err
	}
	if bytes != end.Bytes || hex.EncodeToString(sum.Sum(nil)) != end.SHA256 {
		return end, fmt.Errorf("the backup came damaged: %d bytes of %d; make it again", bytes, end.Bytes)
	}
	return end, nil
}
