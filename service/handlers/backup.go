package handlers

import (
	"context"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"time"

	"github.com/queuectl/queuectl/control"
	"github.com/queuectl/queuectl/service/doctor"
)

// maxBackupPieceBytes is the maximum number of bytes of a backup in one message.
const maxBackupPieceBytes = 256 << 10

// Backup implements control.API.
func (h *API) Backup(ctx context.Context, _ control.NoParams,
	handlePiece func(control.BackupPiece) error) (control.BackupEnd, error) {
	if err := h.Guard.Audit(ctx, "backup", "", nil); err != nil {
		return control.BackupEnd{}, err
	}
	if h.Maintainer == nil {
		return control.BackupEnd{}, doctor.ErrNoFiles
	}
	var lastReport time.Time
	made, err := h.Maintainer.Backup(ctx, func(ref string) (io.ReadCloser, error) { return h.OutputFiles.OpenOutput(ref) },
		func(done, total int64) error {
			if time.Since(lastReport) < doctor.ProgressInterval {
				return nil
			}
			lastReport = time.Now()
			return handlePiece(control.BackupPiece{DoneBytes: done, TotalBytes: total})
		})
	if err != nil {
		return control.BackupEnd{}, err
	}
	defer made.Close()
	sum, sent, piece := sha256.New(), int64(0), make([]byte, maxBackupPieceBytes)
	for {
		n, err := io.ReadFull(made, piece)
		if n > 0 {
			sum.Write(piece[:n])
			sent += int64(n)
			if failed := handlePiece(control.BackupPiece{Base64: piece[:n], DoneBytes: sent,
				TotalBytes: made.Size()}); failed != nil {
				return control.BackupEnd{}, failed
			}
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return control.BackupEnd{Bytes: sent, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
		}
		if err != nil {
			return control.BackupEnd{}, err
		}
	}
}
