package dashboard

import (
	"context"
	"errors"
	"log/slog"
	"net"
)

func listenUnix(context.Context, string, *slog.Logger) (net.Listener, error) {
	return nil, errors.New("there are no such sockets on Windows; give an ADDRESS:PORT")
}
