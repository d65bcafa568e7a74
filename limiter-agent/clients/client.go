// Tests Go's HTTP client with an agent: keep-alive, Expect, trailers, 1xx, cancelled requests, HTTP/2 with prior knowledge.
// Ends with an error at the first difference.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptrace"
	"net/textproto"
	"os"
	"strings"
	"sync"
	"time"
)

type seen struct {
	Method   string
	URL      string
	Bytes    int
	Headers  map[string]any
	Trailers map[string]string
}

var url = "http://127.0.0.1:" + os.Args[1]

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func expect(good bool, words ...any) {
	if !good {
		panic(fmt.Sprint(words...))
	}
}

func read(response *http.Response, err error) (seen, *http.Response) {
	check(err)
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	check(err)
	var answer seen
	if response.Header.Get("content-type") == "application/json" && response.StatusCode == 200 {
		check(json.Unmarshal(body, &answer))
	}
	return answer, response
}

func keepAlive(client *http.Client) {
	connects := 0
	trace := &httptrace.ClientTrace{GotConn: func(info httptrace.GotConnInfo) {
		if !info.Reused {
			connects++
		}
	}}
	for count := range 50 {
		context := httptrace.WithClientTrace(context.Background(), trace)
		request, err := http.NewRequestWithContext(context, "POST", url+"/seen", strings.NewReader(strings.Repeat("x", count)))
		check(err)
		answer, _ := read(client.Do(request))
		expect(answer.Bytes == count, answer.Bytes, " of ", count)
	}
	expect(connects <= 1, connects, " connections")
}

func continues(client *http.Client) {
	got := 0
	trace := &httptrace.ClientTrace{Got100Continue: func() { got++ }}
	request, err := http.NewRequestWithContext(httptrace.WithClientTrace(context.Background(), trace), "POST", url+"/seen",
		bytes.NewReader(make([]byte, 1<<20)))
	check(err)
	request.Header.Set("Expect", "100-continue")
	answer, _ := read(client.Do(request))
	expect(answer.Bytes == 1<<20, answer.Bytes)
	expect(got == 1, got, " times 100")
}

// The agent refuses the request without requesting its body. Then the connection is closed, or works as before.
func refused(client *http.Client) {
	for count := range 5 {
		request, err := http.NewRequest("POST", url+"/limited", bytes.NewReader(make([]byte, 1<<20)))
		check(err)
		request.Header.Set("Expect", "100-continue")
		_, response := read(client.Do(request))
		expect((response.StatusCode == 200) == (count < 2), response.Status, " to number ", count)
		expect(count < 2 || response.Header.Get("Retry-After") != "", "no Retry-After")
	}
}

func trailers(client *http.Client) {
	request, err := http.NewRequest("POST", url+"/seen", io.MultiReader(strings.NewReader("abc")))
	check(err)
	request.Trailer = http.Header{"X-End": {"1"}}
	answer, _ := read(client.Do(request))
	expect(answer.Trailers["x-end"] == "1", answer.Trailers)
	request, err = http.NewRequest("GET", url+"/trailers", nil)
	check(err)
	request.Header.Set("TE", "trailers")
	_, response := read(client.Do(request))
	expect(response.Trailer.Get("X-After") == "it", response.Trailer)
}

// RFC 9110 section 15.2 requires a proxy to forward an app's 103, but hyper cannot do this. The client must never take the 103
// for the final response.
func hints(client *http.Client) int {
	got := 0
	trace := &httptrace.ClientTrace{Got1xxResponse: func(int, textproto.MIMEHeader) error { got++; return nil }}
	request, err := http.NewRequestWithContext(httptrace.WithClientTrace(context.Background(), trace), "GET", url+"/early", nil)
	check(err)
	response, err := client.Do(request)
	check(err)
	body, err := io.ReadAll(response.Body)
	check(err)
	response.Body.Close()
	expect(response.StatusCode == 200 && string(body) == "after hints", response.Status, string(body))
	return got
}

func cancelled(client *http.Client) {
	for range 20 {
		context, cancel := context.WithCancel(context.Background())
		request, err := http.NewRequestWithContext(context, "GET", url+"/large", nil)
		check(err)
		response, err := client.Do(request)
		check(err)
		_, err = io.ReadFull(response.Body, make([]byte, 1000))
		check(err)
		cancel()
		response.Body.Close()
	}
	_, response := read(client.Get(url + "/large"))
	expect(response.StatusCode == 200, response.Status)
}

func many(client *http.Client) {
	var group sync.WaitGroup
	for count := range 200 {
		group.Go(func() {
			path := fmt.Sprintf("/many/%d", count)
			answer, _ := read(client.Get(url + path))
			expect(answer.URL == path, answer.URL, " for ", path)
		})
	}
	group.Wait()
}

func main() {
	one := new(http.Protocols)
	one.SetHTTP1(true)
	two := new(http.Protocols)
	two.SetUnencryptedHTTP2(true)
	for name, protocols := range map[string]*http.Protocols{"HTTP/1.1": one, "HTTP/2": two} {
		transport := &http.Transport{Protocols: protocols, ExpectContinueTimeout: 15 * time.Second, MaxIdleConnsPerHost: 50}
		client := &http.Client{Transport: transport, Timeout: 20 * time.Second}
		keepAlive(client)
		trailers(client)
		cancelled(client)
		many(client)
		fmt.Printf("passed: %s, %d of 1 hints arrived\n", name, hints(client))
		if name == "HTTP/1.1" {
			continues(client)
			refused(client)
			fmt.Println("passed: 100-continue")
		}
	}
}
