// A reverse proxy that limits all requests together, in one of four ways: a peer of cargo xtask bench seeds.
package main

import (
	"context"
	"flag"
	"log"
	"net/http"
	"net/http/httputil"
	"net/url"
	"time"

	"golang.org/x/time/rate"
)

func main() {
	listen := flag.String("listen", "127.0.0.1:8480", "address of the proxy")
	upstream := flag.String("upstream", "127.0.0.1:8080", "address of the app")
	limiter := flag.String("limiter", "none", "none, ticker, ticker-timeout or rate")
	perSecond := flag.Int("rate", 425, "requests a second")
	burst := flag.Int("burst", 10, "requests at once")
	wait := flag.Duration("wait", 75*time.Millisecond, "how long a request may wait; not for ticker")
	flag.Parse()

	proxy := &httputil.ReverseProxy{
		Rewrite: func(r *httputil.ProxyRequest) {
			r.SetURL(&url.URL{Scheme: "http", Host: *upstream})
			r.SetXForwarded()
		},
		// The default keeps two connections, and would open one for nearly every request.
		Transport: &http.Transport{MaxIdleConnsPerHost: 4096, DisableCompression: true},
	}
	var admit func(context.Context) bool
	switch *limiter {
	case "none":
		admit = func(context.Context) bool { return true }
	case "ticker":
		tokens := tokens(*perSecond, *burst)
		admit = func(ctx context.Context) bool {
			select {
			case <-tokens:
				return true
			case <-ctx.Done():
				return false
			}
		}
	case "ticker-timeout":
		tokens := tokens(*perSecond, *burst)
		admit = func(ctx context.Context) bool {
			timer := time.NewTimer(*wait)
			defer timer.Stop()
			select {
			case <-tokens:
				return true
			case <-timer.C:
				return false
			case <-ctx.Done():
				return false
			}
		}
	case "rate":
		limiter := rate.NewLimiter(rate.Limit(*perSecond), *burst)
		admit = func(ctx context.Context) bool {
			ctx, cancel := context.WithTimeout(ctx, *wait)
			defer cancel()
			return limiter.Wait(ctx) == nil
		}
	default:
		log.Fatalf("there is no limiter %s", *limiter)
	}
	handler := http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		if !admit(r.Context()) {
			w.WriteHeader(http.StatusTooManyRequests)
			return
		}
		proxy.ServeHTTP(w, r)
	})
	log.Fatal(http.ListenAndServe(*listen, handler))
}

// tokens is a channel that is full at first and gets one token per tick. A token that does not fit is lost.
func tokens(perSecond, burst int) <-chan struct{} {
	held := make(chan struct{}, burst)
	for range burst {
		held <- struct{}{}
	}
	go func() {
		for range time.Tick(time.Second / time.Duration(perSecond)) {
			select {
			case held <- struct{}{}:
			default:
			}
		}
	}()
	return held
}
