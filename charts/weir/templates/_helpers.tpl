{{/* The name of every object of a release: the release's name, which contains "weir" (or nameOverride) once, or
fullnameOverride. */}}
{{- define "weir.fullname" -}}
{{- $name := .Values.nameOverride | default "weir" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride -}}
{{- else if contains $name .Release.Name -}}
{{- printf "%s-operator" .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-%s-operator" .Release.Name $name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* The name of the webhook's Service and Secret. A long name is cut, so that the suffix fits. */}}
{{- define "weir.webhook" -}}
{{- printf "%s-webhook" (include "weir.fullname" . | trunc 55 | trimSuffix "-") -}}
{{- end -}}

{{/* Not empty if cert-manager issues the webhook's certificate. */}}
{{- define "weir.certManager" -}}
{{- with .Values.injection }}{{ if and .enabled .certManager.enabled }}true{{ end }}{{ end }}
{{- end -}}

{{/* The name of the Service for the operator's metrics. */}}
{{- define "weir.telemetry" -}}
{{- printf "%s-telemetry" (include "weir.fullname" . | trunc 53 | trimSuffix "-") -}}
{{- end -}}

{{/* The name of the identity service's Service and Secret. */}}
{{- define "weir.identity" -}}
{{- printf "%s-identity" (include "weir.fullname" . | trunc 54 | trimSuffix "-") -}}
{{- end -}}

{{/* The name of the rate limit service's objects. */}}
{{- define "weir.rateLimitService" -}}
{{- printf "%s-rate-limit" (include "weir.fullname" . | trunc 52 | trimSuffix "-") -}}
{{- end -}}

{{/* The seconds of a duration such as 1h30m. */}}
{{- define "weir.seconds" -}}
{{- $seconds := 0 -}}
{{- range regexFindAll "[0-9]+[hms]" . -1 -}}
{{- $unit := get (dict "h" 3600 "m" 60 "s" 1) (regexFind "[hms]" .) -}}
{{- $seconds = add $seconds (mul $unit (regexFind "[0-9]+" . | atoi)) -}}
{{- end -}}
{{- $seconds -}}
{{- end -}}

{{/* The value of a quantity such as 100m or 64Mi, in cores or bytes. */}}
{{- define "weir.quantity" -}}
{{- $number := regexFind "^[0-9.]+" (toString .) -}}
{{- $unit := trimPrefix $number (toString .) -}}
{{- $binary := get (dict "Ki" 1024 "Mi" 1048576 "Gi" 1073741824 "Ti" 1099511627776 "Pi" 1125899906842624 "Ei" 1152921504606846976) $unit -}}
{{- $decimal := get (dict "n" "e-9" "u" "e-6" "m" "e-3" "k" "e3" "M" "e6" "G" "e9" "T" "e12" "P" "e15" "E" "e18") $unit -}}
{{- if $binary -}}
{{- mulf (float64 $number) $binary -}}
{{- else -}}
{{- printf "%s%s" $number ($decimal | default $unit) -}}
{{- end -}}
{{- end -}}

{{/* The 32 hexadecimal digits of an IPv6 address. Empty if the text is none. */}}
{{- define "weir.ipv6Digits" -}}
{{- $text := lower . -}}
{{- /* The last 32 bits can be written as IPv4. */ -}}
{{- $last := splitList ":" $text | last -}}
{{- if regexMatch (printf "^%s$" (include "weir.ipv4Pattern" .)) $last -}}
{{- $bytes := splitList "." $last -}}
{{- $hex := printf "%02x%02x:%02x%02x" (index $bytes 0 | atoi) (index $bytes 1 | atoi) (index $bytes 2 | atoi) (index $bytes 3 | atoi) -}}
{{- $text = printf "%s%s" (trimSuffix $last $text) $hex -}}
{{- end -}}
{{- /* Two colons stand for one or more groups of zeros. */ -}}
{{- $parts := list -}}
{{- $count := 0 -}}
{{- $valid := true -}}
{{- range splitList "::" $text -}}
{{- $digits := "" -}}
{{- if . -}}
{{- range splitList ":" . -}}
{{- $valid = and $valid (regexMatch "^[0-9a-f]{1,4}$" .) -}}
{{- $digits = printf "%s%s%s" $digits (repeat (max 0 (sub 4 (len .)) | int) "0") . -}}
{{- $count = add $count 1 -}}
{{- end -}}
{{- end -}}
{{- $parts = append $parts $digits -}}
{{- end -}}
{{- if and $valid (or (and (eq (len $parts) 1) (eq (int $count) 8)) (and (eq (len $parts) 2) (lt (int $count) 8))) -}}
{{- join (repeat (sub 8 $count | mul 4 | int) "0") $parts -}}
{{- end -}}
{{- end -}}

{{/* A regular expression for IPv4 addresses. */}}
{{- define "weir.ipv4Pattern" -}}
{{- $byte := "(25[0-5]|2[0-4][0-9]|1[0-9][0-9]|[1-9]?[0-9])" -}}
{{- printf "%s([.]%s){3}" $byte $byte -}}
{{- end -}}

{{/* The labels by which the Deployment selects its pods. They must never change between versions of the chart. */}}
{{- define "weir.selectorLabels" -}}
app.kubernetes.io/name: weir
app.kubernetes.io/instance: {{ .Release.Name | quote }}
app.kubernetes.io/component: operator
{{- end -}}

{{/* The same for the Deployment of the rate limit service. */}}
{{- define "weir.rateLimitServiceSelectorLabels" -}}
{{- set (include "weir.selectorLabels" . | fromYaml) "app.kubernetes.io/component" "rate-limit-service" | toYaml -}}
{{- end -}}

{{/* The chart's own labels take precedence, because Services and budgets select by them. */}}
{{- define "weir.labels" -}}
{{- $own := include "weir.selectorLabels" . | fromYaml -}}
{{- $_ := set $own "app.kubernetes.io/version" .Chart.AppVersion -}}
{{- $_ := set $own "app.kubernetes.io/managed-by" .Release.Service -}}
{{- $_ := set $own "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_") -}}
{{- merge $own (.Values.commonLabels | default dict) | toYaml -}}
{{- end -}}

{{- define "weir.rateLimitServiceLabels" -}}
{{- merge (include "weir.rateLimitServiceSelectorLabels" . | fromYaml) (include "weir.labels" . | fromYaml) | toYaml -}}
{{- end -}}

{{/* The name of an image with a registry: (list $ NAME REGISTRY). A name contains a registry if there is a dot, a colon
or localhost before its first slash. */}}
{{- define "weir.inRegistry" -}}
{{- $name := index . 1 -}}
{{- $registry := index . 2 -}}
{{- $first := splitList "/" $name | first -}}
{{- if not (and (contains "/" $name) (or (contains "." $first) (contains ":" $first) (eq $first "localhost"))) -}}
{{- printf "%s/%s" ($registry | default (index . 0).Values.images.registry) $name -}}
{{- else if $registry -}}
{{- fail (printf "image registry %s is not valid with repository %s, which names a registry itself: remove one of them" $registry $name) -}}
{{- else -}}
{{- $name -}}
{{- end -}}
{{- end -}}

{{/* The full name of an image: (list $ VALUES). */}}
{{- define "weir.image" -}}
{{- $root := index . 0 -}}
{{- $image := index . 1 -}}
{{- $name := include "weir.inRegistry" (list $root $image.repository $image.registry) -}}
{{- $tag := $image.tag -}}
{{- if not $image.digest -}}
{{- $tag = $tag | default $root.Values.images.tag | default $root.Chart.AppVersion -}}
{{- end -}}
{{- if $tag }}{{ $name = printf "%s:%s" $name $tag }}{{ end -}}
{{- if $image.digest }}{{ $name = printf "%s@%s" $name $image.digest }}{{ end -}}
{{- $name -}}
{{- end -}}

{{/* The pull policy of an image: (list $ VALUES). */}}
{{- define "weir.pullPolicy" -}}
{{- (index . 1).pullPolicy | default (index . 0).Values.images.pullPolicy -}}
{{- end -}}

{{- /* The security context of the pods of `helm test`, with the user of the operator's pods. */ -}}
{{- define "weir.testSecurity" -}}
{{- $user := pick (.Values.podSecurityContext | default dict) "runAsUser" "runAsGroup" -}}
{{- merge (dict "runAsNonRoot" true "seccompProfile" (dict "type" "RuntimeDefault")) $user | toYaml -}}
{{- end -}}

{{- define "weir.serviceAccount" -}}
{{- with .Values.serviceAccount -}}
{{- if .create -}}
{{- .name | default (include "weir.fullname" $) -}}
{{- else -}}
{{- required "serviceAccount.create is false: set serviceAccount.name to the ServiceAccount of the operator" .name -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The Secret with the webhook's certificate, unless the operator issues it. */}}
{{- define "weir.webhookCertificate" -}}
{{- if .Values.injection.enabled -}}
{{- if include "weir.certManager" . -}}
{{- include "weir.webhook" . }}-tls
{{- else -}}
{{- .Values.injection.certificate.existingSecret | default "" -}}
{{- end -}}
{{- end -}}
{{- end -}}

{{/* The Secret with the CA that signs for agents, unless the operator creates it. */}}
{{- define "weir.authority" -}}
{{- with .Values.identity }}{{ if .enabled }}{{ .authority.existingSecret | default "" }}{{ end }}{{ end -}}
{{- end -}}

{{/* The Secret in which the operator keeps the webhook's CAs. */}}
{{- define "weir.webhookSecret" -}}
{{- .Values.injection.existingSecret | default (include "weir.webhook" .) -}}
{{- end -}}

{{/* The Secret in which the operator keeps the agents' CAs. */}}
{{- define "weir.identitySecret" -}}
{{- .Values.identity.existingSecret | default (include "weir.identity" .) -}}
{{- end -}}

{{/* The rights of the operator in a namespace, the same for single namespaces and for all. */}}
{{- define "weir.rules" -}}
- apiGroups: [weir.dev]
  resources: [ratelimitpolicies, ratelimitstores]
  verbs: [list, watch]
- apiGroups: [weir.dev]
  resources: [ratelimitpolicies/status, ratelimitstores/status]
  verbs: [patch]
- apiGroups: [""]
  resources: [pods, services]
  verbs: [list, watch]
- apiGroups: [apps]
  resources: [deployments, statefulsets, daemonsets]
  verbs: [list, watch]
- apiGroups: [events.k8s.io]
  resources: [events]
  verbs: [create]
{{- if .Values.injection.enabled }}
# An agent's requests and limits must fit the namespace's limits, or the apiserver would refuse the pod.
- apiGroups: [""]
  resources: [limitranges, resourcequotas]
  verbs: [list]
{{- end }}
{{- end -}}
