// hello is the only program in the image of the smoke test.
//
//	hello serve      answers on :8080 with the pod's name
//	hello get URL    prints the status and the body
package main

import (
	"fmt"
	"io"
	"log"
	"net/http"
	"os"
	"time"
)

func main() {
	switch {
	case len(os.Args) == 2 && os.Args[1] == "serve":
		name, err := os.Hostname()
		if err != nil {
			log.Fatal(err)
		}
		http.HandleFunc("/", func(w http.ResponseWriter, r *http.Request) {
			fmt.Fprintf(w, "hello from %s\n", name)
		})
		log.Fatal(http.ListenAndServe(":8080", nil))
	case len(os.Args) == 3 && os.Args[1] == "get":
		client := http.Client{Timeout: 5 * time.Second}
		response, err := client.Get(os.Args[2])
		if err != nil {
			log.Fatal(err)
		}
		body, err := io.ReadAll(response.Body)
		if err != nil {
			log.Fatal(err)
		}
		fmt.Print(response.StatusCode, " ", string(body))
	default:
		log.Fatal("usage: hello serve | get URL")
	}
}
