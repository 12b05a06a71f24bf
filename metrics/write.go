package metrics

import (
	"context"
	"io"
	"math"
	"strings"

	dto "github.com/prometheus/client_model/go"
	"github.com/prometheus/common/expfmt"

	"github.com/queuectl/queuectl/control"
)

// WriteMetricsText writes the metrics of a queue in the text format of Prometheus.
func WriteMetricsText(ctx context.Context, api control.API, w io.Writer) error {
	families, err := gatherFamilies(ctx, api)
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

// ServiceDownMetricsText is the text of the metrics for a queue whose service does not reply.
const ServiceDownMetricsText = "# HELP queuectl_healthy " + healthyMetricHelp +
	"\n# TYPE queuectl_healthy gauge\nqueuectl_healthy 0\n"

// MetricFamily is a metric with its values for all labels. It is used for JSON output.
type MetricFamily struct {
	Name    string   `json:"name"`
	Help    string   `json:"help"`
	Type    string   `json:"type"` // counter, gauge or histogram
	Metrics []Metric `json:"metrics"`
}

// Metric is one value of a family. A counter or a gauge has Value. A histogram has Count, Sum and
// cumulative Buckets.
type Metric struct {
	Labels  map[string]string `json:"labels"`
	Value   *float64          `json:"value,omitempty"`
	Count   *uint64           `json:"count,omitempty"`
	Sum     *float64          `json:"sum,omitempty"`
	Buckets []Bucket          `json:"buckets,omitempty"`
}

// Bucket counts the values that are at most UpperBound.
type Bucket struct {
	UpperBound      float64 `json:"le"`
	CumulativeCount uint64  `json:"count"`
}

// ReadMetricFamilies returns the metrics of the service and its queues, sorted by name.
func ReadMetricFamilies(ctx context.Context, api control.API) ([]MetricFamily, error) {
	families, err := gatherFamilies(ctx, api)
	if err != nil {
		return nil, err
	}
	list := []MetricFamily{}
	for _, f := range families {
		of := MetricFamily{Name: f.GetName(), Help: f.GetHelp(), Type: strings.ToLower(f.GetType().String()),
			Metrics: []Metric{}}
		for _, m := range f.Metric {
			one := Metric{Labels: map[string]string{}}
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
					if !math.IsInf(b.GetUpperBound(), 1) { // omit the bucket +Inf, which equals Count
						one.Buckets = append(one.Buckets, Bucket{b.GetUpperBound(), b.GetCumulativeCount()})
					}
				}
			}
			of.Metrics = append(of.Metrics, one)
		}
		list = append(list, of)
	}
	return list, nil
}

// gatherFamilies returns the metrics of a queue, sorted by name.
func gatherFamilies(ctx context.Context, api control.API) ([]*dto.MetricFamily, error) {
	registry, err := NewRegistry(ctx, api)
	if err != nil {
		return nil, err
	}
	return registry.Gather()
}
