// Runs golang.org/x/time/rate on a clock of made-up times, and writes its decisions: see ../README.md.
package main

import (
	"bufio"
	"fmt"
	"math/rand/v2"
	"os"
	"time"

	"golang.org/x/time/rate"
)

// limit is a number of requests per period, with a burst.
type limit struct {
	requests int
	period   time.Duration
	burst    int
}

var limits = []limit{
	{1, time.Second, 1},
	{10, time.Second, 5},
	{100, time.Second, 1},
	{1000, time.Second, 1000},
	{1, 24 * time.Hour, 2},
	{3, 10 * time.Second, 3},
	{1_000_000, time.Second, 50},
	{7, time.Second, 3},
	{600, time.Minute, 20},
	{999_983, time.Second, 1},
}

// run is one limiter and the state of its arrivals.
type run struct {
	limit
	limiter      *rate.Limiter
	now          time.Time
	random       *rand.Rand
	out          *bufio.Writer
	last         time.Time
	reservations []*rate.Reservation
	lines        int
}

// emission returns the time in which n requests flow in.
func (r *run) emission(n float64) time.Duration {
	return time.Duration(n * float64(r.period) / float64(r.requests))
}

// usual returns a cost of which a few requests use up the burst.
func (r *run) usual() int { return max(1, r.burst/8) }

// some returns a random cost from 1 to n.
func (r *run) some(n int) int { return 1 + r.random.IntN(max(1, n)) }

// pass advances the clock by the time in which n requests flow in, on average.
func (r *run) pass(n float64) { r.now = r.now.Add(r.emission(r.random.ExpFloat64() * n)) }

func (r *run) write(what string) {
	fmt.Fprintf(r.out, "%d %s\n", r.now.Sub(r.last).Nanoseconds(), what)
	r.last = r.now
	r.lines++
}

func (r *run) allow(cost int) {
	answer := "no"
	if r.limiter.AllowN(r.now, cost) {
		answer = "yes"
	}
	r.write(fmt.Sprintf("allow %d %s", cost, answer))
}

func (r *run) reserve(cost int) {
	reservation, answer := r.limiter.ReserveN(r.now, cost), "no"
	if reservation.OK() {
		answer = fmt.Sprint(reservation.DelayFrom(r.now).Nanoseconds())
		r.reservations = append(r.reservations, reservation)
	}
	r.write(fmt.Sprintf("reserve %d %s", cost, answer))
}

// cancel gives back a reservation for a future time, if there is one. The trace contains its number among all granted
// reservations.
func (r *run) cancel() {
	for _, i := range r.random.Perm(len(r.reservations)) {
		if reservation := r.reservations[i]; reservation != nil && reservation.DelayFrom(r.now) > 0 {
			reservation.CancelAt(r.now)
			r.reservations[i] = nil
			r.write(fmt.Sprintf("cancel %d", i))
			return
		}
	}
}

// patterns are the patterns of arrivals. A run starts with a free burst.
var patterns = []struct {
	name   string
	arrive func(r *run)
}{
	// Requests arrive at the rate of the limit, a nanosecond earlier or later.
	{"steady", func(r *run) {
		r.allow(r.burst)
		for i := range 60 {
			r.now = r.now.Add(r.emission(float64(r.usual())) + time.Duration(i%3-1))
			r.allow(r.usual())
		}
	}},
	{"hurried", func(r *run) {
		for range 60 {
			r.allow(r.usual())
			r.now = r.now.Add(r.emission(0.6 * float64(r.usual())))
		}
	}},
	{"poisson", func(r *run) {
		r.allow(r.burst)
		for range 80 {
			r.pass(0.8 * float64(r.usual()))
			r.allow(r.usual())
		}
	}},
	{"bursts", func(r *run) {
		for range 12 {
			for range 3 + r.random.IntN(5) {
				r.allow(r.some(r.burst / 3))
			}
			r.pass(0.7 * float64(r.burst))
		}
	}},
	{"idle", func(r *run) {
		for range 8 {
			for range 5 {
				r.allow(r.some(r.burst / 2))
			}
			r.pass(50 * float64(r.burst))
		}
	}},
	{"standing", func(r *run) {
		for range 30 {
			r.allow(r.some(r.burst / 8))
		}
	}},
	{"costs", func(r *run) {
		for range 60 {
			cost := r.some(r.burst)
			r.allow(cost)
			r.pass(0.9 * float64(cost))
		}
	}},
	{"oversized", func(r *run) {
		for range 40 {
			cost := r.some(r.burst + 2)
			r.allow(cost)
			r.pass(float64(cost))
		}
	}},
	// Reservations, some of which are given back. Their waits are at most a few bursts.
	{"reserved", func(r *run) {
		for range 80 {
			switch n := r.random.IntN(10); {
			case n < 6:
				r.reserve(r.some(r.burst/2 + 1))
			case n < 8:
				r.cancel()
			default:
				r.allow(r.some(r.burst / 2))
			}
			r.pass(0.9 * float64(r.usual()))
		}
	}},
	// Two threads read the clock, and one of them uses its reading late.
	{"backwards", func(r *run) {
		for range 40 {
			front := r.now
			r.allow(r.usual())
			r.now = front.Add(-r.emission(0.5 * r.random.Float64() * float64(r.usual())))
			r.allow(r.usual())
			r.now = front
			r.pass(0.5 * float64(r.usual()))
		}
	}},
}

func main() {
	out := bufio.NewWriter(os.Stdout)
	defer out.Flush()
	fmt.Fprintln(out, "# golang.org/x/time/rate v0.16.0, written by go/main.go; the lines are explained in README.md")
	start := time.Unix(1_700_000_000, 0)
	for i, limit := range limits {
		for j, pattern := range patterns {
			// With one request a day, a reservation would be later than Weir's longest wait.
			if pattern.name == "reserved" && limit.period > time.Hour {
				continue
			}
			fmt.Fprintf(out, "= TokenBucket %d %d %d %s\n", limit.requests, limit.period.Nanoseconds(), limit.burst, pattern.name)
			each := rate.Limit(float64(limit.requests) / limit.period.Seconds())
			pattern.arrive(&run{
				limit:   limit,
				limiter: rate.NewLimiter(each, limit.burst),
				now:     start,
				random:  rand.New(rand.NewPCG(uint64(i), uint64(j))),
				out:     out,
				last:    start,
			})
		}
	}
}
