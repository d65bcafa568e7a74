{{/* The chart's own labels take precedence. */}}
{{- define "weir-crds.labels" -}}
{{- $own := dict
  "app.kubernetes.io/name" "weir-crds"
  "app.kubernetes.io/instance" .Release.Name
  "app.kubernetes.io/version" .Chart.AppVersion
  "app.kubernetes.io/managed-by" .Release.Service
  "helm.sh/chart" (printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_")
-}}
{{- merge $own (omit (.Values.commonLabels | default dict) "gateway.networking.k8s.io/policy") | toYaml -}}
{{- end -}}
