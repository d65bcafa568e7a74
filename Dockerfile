# Images of the operator and the agent, for builders with a registry at hand:
#
#   docker build --target operator -t weir.dev/operator:0.1.0 .
#   docker build --target agent    -t weir.dev/agent:0.1.0 .
#   docker build --target testapp  -t weir.dev/testapp:0.1.0 .      (the app of examples/workload)
#
# The end-to-end tests do not use this file, because the machines they run on may have no registry: e2e/images/build.sh
# makes images from local binaries, and those are the ones that are tested. This file was never built by those tests.

FROM rust:1.95-slim-bookworm AS build
WORKDIR /src
COPY . .
RUN cargo build --release --locked -p weir-operator -p weir-agent -p weir-testapp

# Debian 12, as the builder: the binaries need its glibc and libgcc, and nothing else. `nonroot` is uid 65532.
FROM gcr.io/distroless/cc-debian12:nonroot AS operator
COPY --from=build /src/target/release/weir-operator /usr/local/bin/
EXPOSE 8490
ENTRYPOINT ["/usr/local/bin/weir-operator"]
CMD ["run"]

FROM gcr.io/distroless/cc-debian12:nonroot AS agent
COPY --from=build /src/target/release/weir-agent /usr/local/bin/
EXPOSE 8480 8481 8482
ENTRYPOINT ["/usr/local/bin/weir-agent"]

FROM gcr.io/distroless/cc-debian12:nonroot AS testapp
COPY --from=build /src/target/release/weir-testapp /usr/local/bin/
EXPOSE 8080
ENTRYPOINT ["/usr/local/bin/weir-testapp"]
