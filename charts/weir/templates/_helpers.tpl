{{/* Name of every object of a release: its name, with "weir" in it once. */}}
{{- define "weir.fullname" -}}
{{- if contains "weir" .Release.Name -}}
{{- printf "%s-operator" .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- printf "%s-weir-operator" .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{/* Name of the webhook's Service and Secret, with room for what a longer name would lose. */}}
{{- define "weir.webhook" -}}
{{- printf "%s-webhook" (include "weir.fullname" . | trunc 55 | trimSuffix "-") -}}
{{- end -}}

{{/* Whether cert-manager makes the webhook's certificate. A release from before there was the choice has no value for it. */}}
{{- define "weir.certManager" -}}
{{- with .Values.injection }}{{ if and .enabled (dig "certManager" "enabled" false .) }}true{{ end }}{{ end }}
{{- end -}}

{{/* Name of the identity service's Service and Secret. */}}
{{- define "weir.identity" -}}
{{- printf "%s-identity" (include "weir.fullname" . | trunc 54 | trimSuffix "-") -}}
{{- end -}}

{{/* What the Deployment selects its pods by: must never change between versions of the chart. */}}
{{- define "weir.selectorLabels" -}}
app.kubernetes.io/name: weir
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: operator
{{- end -}}

{{- define "weir.labels" -}}
{{ include "weir.selectorLabels" . }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" }}
{{- end -}}

{{/* Exactly what the operator does in a namespace, the same for one namespace or all of them. */}}
{{- define "weir.rules" -}}
- apiGroups: [weir.dev]
  resources: [ratelimitpolicies]
  verbs: [list, watch]
- apiGroups: [weir.dev]
  resources: [ratelimitpolicies/status]
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
{{- end -}}
