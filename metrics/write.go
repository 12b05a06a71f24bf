package metrics

import (
	"context"
	"io"

	"github.com/prometheus/common/expfmt"

	"github.com/queuectl/queuectl/control"
)

// WriteText writes a queue's metrics in Prometheus' text format.
func WriteText(ctx context.Context, api control.API, w io.Writer) error {
	registry, err := Of(ctx, api)
	if err != nil {
		return err
	}
	families, err := registry.Gather()
	if err != nil {
		return err
	}
	out := expfmt.NewEncoder(w, expfmt.NewFormat(expfmt.TypeTextPlain))
	for _, f := range families {
		if err := out.Encode(f); err != nil {
			return err
		}
	}
	return nil
}
