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

// StreamBackup implements control.API.
func (h *API) StreamBackup(ctx context.Context, _ control.NoParams,
	handlePiece func(control.BackupPiece) error) (result control.BackupSummary, err error) {
	if err := h.Guard.RecordAudit(ctx, "backup", "", nil); err != nil {
		return result, err
	}
	if h.StoreMaintainer == nil {
		return result, doctor.ErrStoreHasNoFiles
	}
	var lastReport time.Time
	made, err := h.StoreMaintainer.Backup(ctx, func(ref string) (io.ReadCloser, error) {
		return h.OutputFiles.OpenOutputFile(ref)
	},
		func(done, total int64) error {
			if time.Since(lastReport) < doctor.MinProgressInterval {
				return nil
			}
			lastReport = time.Now()
			return handlePiece(control.BackupPiece{CopiedBytes: done, TotalBytes: total})
		})
	if err != nil {
		return result, err
	}
	defer made.Close()
	sum, sent, piece := sha256.New(), int64(0), make([]byte, maxBackupPieceBytes)
	for {
		n, err := io.ReadFull(made, piece)
		if n > 0 {
			sum.Write(piece[:n])
			sent += int64(n)
			if failed := handlePiece(control.BackupPiece{Content: piece[:n], CopiedBytes: sent,
				TotalBytes: made.Size()}); failed != nil {
				return result, failed
			}
		}
		if err == io.EOF || err == io.ErrUnexpectedEOF {
			return control.BackupSummary{TotalBytes: sent, SHA256: hex.EncodeToString(sum.Sum(nil))}, nil
		}
		if err != nil {
			return result, err
		}
	}
}
