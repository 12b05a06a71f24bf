package dashboard

import (
	"context"
	"errors"
	"log/slog"
	"net"
)

func listenUnix(context.Context, string, *slog.Logger) (net.Listener, error) {
	return nil, errors.New("Unix sockets are not supported on Windows; give ADDRESS:PORT")
}
