// netd is a minimal replacement of kindnetd. It writes the node's CNI config,
// maintains a route to the pod range of each other node, masquerades traffic
// that leaves the pod network, and refuses ClusterIPs that kube-proxy has not
// programmed. It does not enforce NetworkPolicy. It calls `ip` and `nft`.
package main

import (
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"fmt"
	"log"
	"net/http"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

const sa = "/var/run/secrets/kubernetes.io/serviceaccount/"

type nodeList struct {
	Items []struct {
		Metadata struct{ Name string }
		Spec     struct{ PodCIDR string }
		Status   struct {
			Addresses []struct{ Type, Address string }
		}
	}
}

func run(stdin string, name string, args ...string) error {
	c := exec.Command(name, args...)
	c.Stdin = strings.NewReader(stdin)
	if out, err := c.CombinedOutput(); err != nil {
		return fmt.Errorf("%s %v: %w: %s", name, args, err, out)
	}
	return nil
}

func nodes(ctx context.Context, c *http.Client, base string) (*nodeList, error) {
	tok, err := os.ReadFile(sa + "token")
	if err != nil {
		return nil, err
	}
	req, _ := http.NewRequestWithContext(ctx, "GET", base+"/api/v1/nodes", nil)
	req.Header.Set("Authorization", "Bearer "+strings.TrimSpace(string(tok)))
	resp, err := c.Do(req)
	if err != nil {
		return nil, err
	}
	defer resp.Body.Close()
	if resp.StatusCode != 200 {
		return nil, fmt.Errorf("list nodes: %s", resp.Status)
	}
	var l nodeList
	return &l, json.NewDecoder(resp.Body).Decode(&l)
}

func writeCNI(cidr string) error {
	conf := fmt.Sprintf(`{
  "cniVersion": "0.4.0",
  "name": "kindnet",
  "plugins": [
    {"type": "ptp", "ipMasq": false, "mtu": 1500,
     "ipam": {"type": "host-local", "dataDir": "/run/cni-ipam-state",
              "routes": [{"dst": "0.0.0.0/0"}], "ranges": [[{"subnet": %q}]]}},
    {"type": "portmap", "capabilities": {"portMappings": true}}
  ]
}
`, cidr)
	const path = "/etc/cni/net.d/10-kindnet.conflist"
	if b, err := os.ReadFile(path); err == nil && string(b) == conf {
		return nil
	}
	tmp := filepath.Join(filepath.Dir(path), ".netd.tmp")
	if err := os.WriteFile(tmp, []byte(conf), 0o644); err != nil {
		return err
	}
	return os.Rename(tmp, path)
}

func main() {
	hostIP, subnet := os.Getenv("HOST_IP"), os.Getenv("POD_SUBNET")
	base := "https://" + os.Getenv("KUBERNETES_SERVICE_HOST") + ":" + os.Getenv("KUBERNETES_SERVICE_PORT")
	if e := os.Getenv("CONTROL_PLANE_ENDPOINT"); e != "" {
		base = "https://" + e
	}
	ca, err := os.ReadFile(sa + "ca.crt")
	if err != nil {
		log.Fatal(err)
	}
	pool := x509.NewCertPool()
	pool.AppendCertsFromPEM(ca)
	client := &http.Client{Timeout: 5 * time.Second, Transport: &http.Transport{TLSClientConfig: &tls.Config{RootCAs: pool}}}

	// After DNAT, a packet has a ClusterIP as its destination only if kube-proxy
	// has not programmed it yet. Such packets are refused. Without this rule they
	// would leave by the default route, and a client, such as coredns at its
	// start, would wait for a dial timeout of 30 s. kind's default serviceSubnet
	// is the /16 around the ClusterIP of the API.
	services := os.Getenv("KUBERNETES_SERVICE_HOST") + "/16"
	rules := fmt.Sprintf(`table ip netd
delete table ip netd
table ip netd {
  chain postrouting {
    type nat hook postrouting priority srcnat; policy accept;
    ip saddr %[1]s ip daddr != %[1]s fib daddr type != local masquerade
  }
  chain unprogrammed {
    ip daddr %[2]s meta l4proto tcp reject with tcp reset
    ip daddr %[2]s reject
  }
  chain forward { type filter hook forward priority filter; policy accept; jump unprogrammed; }
  chain output { type filter hook output priority filter; policy accept; jump unprogrammed; }
}
`, subnet, services)
	if err := run(rules, "nft", "-f", "-"); err != nil {
		log.Fatal("rules: ", err) // the restart makes the fault visible: without the rules, the cluster fails at random
	}

	log.Printf("netd: host %s, pods %s, api %s", hostIP, subnet, base)
	for last := ""; ; {
		wait := 2 * time.Second
		l, err := nodes(context.Background(), client, base)
		if err != nil {
			log.Print(err)
		} else {
			state := ""
			for _, n := range l.Items {
				ip := ""
				for _, a := range n.Status.Addresses {
					if a.Type == "InternalIP" && ip == "" {
						ip = a.Address
					}
				}
				if ip == "" || n.Spec.PodCIDR == "" {
					continue
				}
				state += n.Metadata.Name + "=" + n.Spec.PodCIDR + "@" + ip + " "
				if ip == hostIP {
					err = writeCNI(n.Spec.PodCIDR)
				} else {
					err = run("", "ip", "route", "replace", n.Spec.PodCIDR, "via", ip)
				}
				if err != nil {
					log.Print(err)
				}
			}
			if state != last {
				log.Print("nodes: ", state)
				last = state
			}
			if state != "" {
				wait = 5 * time.Second
			}
		}
		time.Sleep(wait)
	}
}
