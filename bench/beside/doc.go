// Package beside measures the queue on a PostgreSQL server beside others that live on one: River, graphile-worker and
// pg-boss, on the same server in one run. It is a module of its own, so that their libraries are none of the program's.
package beside
