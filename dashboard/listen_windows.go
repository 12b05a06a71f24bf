package dashboard

import (
	"context"
	"errors"
	"log/slog"
	"net"
)

func listenUnix(context.Context, string, *slog.Logger) (net.Listener, error) {
	return nil, errors.New("listening on a Unix socket is not supported on Windows; give ADDRESS:PORT")
}
