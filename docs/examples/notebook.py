# %% [markdown]
# # Changes of a database in a notebook
#
# A feed runs in this process, beside your own Spark. A table is streamed into a typed frame and joined with another; then the files that the feed wrote are read as of a moment.
# Everything is on this machine: the source is Penstock's embedded data server with a small shop. A MariaDB or PostgreSQL takes its place by its URI.

# %%
import subprocess
import sys
import tempfile
from pathlib import Path

import penstock

work = Path(tempfile.mkdtemp())
command = [sys.executable, "-m", "penstock", "dataserver", "--workload", "--rows", "2000", "--rate", "0", "--seed", "7"]
shop = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
source = next(line for line in shop.stdout if "listening on" in line).split()[2]
written = next(line for line in shop.stdout if "workload" in line)

# %% [markdown]
# ## A feed in this process
#
# `start` returns when the feed is created. `wait_until_caught_up` returns when everything that was committed before is in the files.

# %%
target = (work / "files").as_uri()
capture = penstock.capture(source, "shop.*", target, data_dir=work / "data", settings={"flush-interval": "500ms"}).start()
reached = capture.wait_until_caught_up(timeout=300)
reached.state, reached.uncovered

# %% [markdown]
# ## A table, streamed into a typed frame
#
# The stream begins with the rows that there are, as inserts, and goes on with every change. `availableNow` ends it where the table stands.

# %%
from pyspark.sql import SparkSession

spark = SparkSession.builder.getOrCreate()
penstock.spark.register(spark)
shop_table = {"data-dir": str(capture.data_dir)}
stream = spark.readStream.format("penstock").options(**shop_table, table="shop.orders", columns="id,status,amount").option("from-ts", "0").load()
query = stream.writeStream.format("memory").queryName("orders").trigger(availableNow=True).start()
query.awaitTermination(300)
spark.table("orders").printSchema()

# %% [markdown]
# ## Joined with another table
#
# The other one is read as it is now, two of its columns, from the event store: the database is not asked.

# %%
items = spark.read.format("penstock").options(**shop_table, table="shop.order_items", columns="order_id,price").load()
orders = spark.table("orders")
joined = orders.join(items, orders["id"] == items["order_id"]).groupBy("status").count().orderBy("status")
joined.show()

# %% [markdown]
# ## The files, as of a moment
#
# Tables that are read as of one moment fit together. A moment is a ts, or a time with its zone.

# %%
capture.stop()
now = penstock.read_table(target, "shop.orders")
then = penstock.read_table(target, "shop.orders", as_of=reached.checkpoint_ts)
changes = penstock.read_changes(target, "shop.orders")
now.equals(then), changes.group_by("_op").len().sort("_op").rows()

# %%
now.select("id", "status", "amount").sort("id").head(5)

# %%
shop.terminate()
shop.wait()
