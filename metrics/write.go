package metrics

import (
	"context"
	"encoding/json"
	"io"
	"math"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/queuectl/queuectl/control"
)

// WriteText writes a queue's metrics in Prometheus' text format.
func WriteText(ctx context.Context, api control.API, w io.Writer) error {
	families, err := gathered(ctx, api)
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

// family is a metric in JSON.
type family struct {
	Name    string   `json:"name"`
	Help    string   `json:"help"`
	Type    string   `json:"type"` // counter, gauge or histogram
	Metrics []metric `json:"metrics"`
}

// metric is one of a family: a value or, of a histogram, its count, sum and cumulative buckets.
type metric struct {
	Labels  map[string]string `json:"labels"`
	Value   *float64          `json:"value,omitempty"`
	Count   *uint64           `json:"count,omitempty"`
	Sum     *float64          `json:"sum,omitempty"`
	Buckets []bucket          `json:"buckets,omitempty"`
}

// bucket counts what was at most so much.
type bucket struct {
	AtMost float64 `json:"le"`
	Count  uint64  `json:"count"`
}

// WriteJSON writes the metrics as one array.
func WriteJSON(ctx context.Context, api control.API, w io.Writer) error {
	families, err := gathered(ctx, api)
	if err != nil {
		return err
	}
	list := []family{}
	for _, f := range families {
		of := family{Name: f.GetName(), Help: f.GetHelp(), Type: strings.ToLower(f.GetType().String()), Metrics: []metric{}}
		for _, m := range f.Metric {
			one := metric{Labels: map[string]string{}}
			for _, l := range m.Label {
				one.Labels[l.GetName()] = l.GetValue()
			}
			switch {
			case m.Counter != nil:
				one.Value = m.Counter.Value
			case m.Gauge != nil:
				one.Value = m.Gauge.Value
			case m.Histogram != nil:
				one.Count, one.Sum = m.Histogram.SampleCount, m.Histogram.SampleSum
				for _, b := range m.Histogram.Bucket {
					if !math.IsInf(b.GetUpperBound(), 1) { // which is all
						one.Buckets = append(one.Buckets, bucket{b.GetUpperBound(), b.GetCumulativeCount()})
					}
				}
			}
			of.Metrics = append(of.Metrics, one)
		}
		list = append(list, of)
	}
	return json.NewEncoder(w).Encode(list)
}

// gathered are the metrics by name.
func gathered(ctx context.Context, api control.API) ([]*dto.MetricFamily, error) {
	registry, err := Of(ctx, api)
	if err != nil {
		return nil, err
	}
	return registry.Gather()
}
